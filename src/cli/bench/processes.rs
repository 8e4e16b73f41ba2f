//! The other processes of a measurement: this program in a role, spoken to in lines of JSON.

use std::{env, process::Stdio};

use anyhow::{Context as _, bail};
use deltabus::bench::orders::Role;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// A process in a role; it is killed when this is dropped, and ends by itself when this process does.
pub(super) struct Player {
    what: &'static str,
    says: Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
    child: Child,
}

impl Player {
    /// Starts this program again. Ctrl-c on the terminal reaches this process only.
    pub(super) fn start(role: &Role) -> anyhow::Result<Self> {
        let what = match role {
            Role::Server { .. } => "server",
            Role::Engine(_) => "engine",
        };
        let program = env::current_exe().context("failed to find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["bench", "--role", &serde_json::to_string(role)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let mut child = command.spawn().with_context(|| format!("failed to start the {what}'s process"))?;
        let (Some(says), Some(hears)) = (child.stdout.take(), child.stdin.take()) else {
            bail!("the {what}'s process cannot be spoken to");
        };
        Ok(Self { what, says: BufReader::new(says).lines(), hears, child })
    }

    /// Tells it something.
    pub(super) async fn tell(&mut self, order: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.hears.write_all(&line).await.with_context(|| format!("the {}'s process has ended", self.what))
    }

    /// Waits for what it says next.
    pub(super) async fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let Some(line) = self.says.next_line().await? else {
            let status = self.child.wait().await?;
            bail!("the {}'s process has ended: {status}", self.what);
        };
        serde_json::from_str(&line).with_context(|| format!("unexpected answer of the {}: {line:?}", self.what))
    }
}
