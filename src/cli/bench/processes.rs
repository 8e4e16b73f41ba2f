//! Child processes of a measurement: this program in a role, which exchanges lines of JSON.

use std::{env, process::Stdio};

use crate::bench::orders::Role;
use anyhow::{Context as _, bail};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Child process in a role. Dropping this kills the process; it also ends when this process ends.
pub(super) struct Player {
    what: &'static str,
    says: Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
    child: Child,
}

impl Player {
    /// Starts this program in a role. Ctrl-c on the terminal reaches only this process.
    pub(super) fn start(role: &Role) -> anyhow::Result<Self> {
        let what = match role {
            Role::Server { .. } => "server",
            Role::Engine(_) => "engine",
        };
        let program = env::current_exe().context("failed to find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["bench", "--role", &serde_json::to_string(role)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let mut child = command.spawn().with_context(|| format!("failed to start the {what} process"))?;
        let (Some(says), Some(hears)) = (child.stdout.take(), child.stdin.take()) else {
            bail!("the {what} process has no pipes");
        };
        Ok(Self { what, says: BufReader::new(says).lines(), hears, child })
    }

    /// Sends an order.
    pub(super) async fn tell(&mut self, order: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.hears.write_all(&line).await.with_context(|| format!("the {} process has ended", self.what))
    }

    /// Waits for the next answer.
    pub(super) async fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let Some(line) = self.says.next_line().await? else {
            let status = self.child.wait().await?;
            bail!("the {} process has ended: {status}", self.what);
        };
        serde_json::from_str(&line).with_context(|| format!("unexpected answer of the {} process: {line:?}", self.what))
    }
}
