//! Credential program of a kubeconfig: `users[].user.exec`.
//!
//! No output of the program is ever shown, because it may hold a secret. On a terminal the program itself writes to stderr, as with
//! kubectl.

use std::{
    io::{self, IsTerminal as _},
    process::Stdio,
    time::Duration,
};

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    time::timeout,
};

use super::CredentialError;
use crate::secret::{ExposeSecret as _, SecretString};

/// Timeout of a run. It is shorter than the timeout of a request, so that the request fails with this reason.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a run that may ask the user.
const TIMEOUT_INTERACTIVE: Duration = Duration::from_mins(5);
/// Maximum number of bytes of the program's output.
const OUTPUT_MAX: u64 = 1 << 20;

/// A credential program, with everything that its run depends on.
#[derive(Clone, PartialEq)]
pub(super) struct Plugin {
    user: String,
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    hint: String,
    mode: Option<ExecInteractiveMode>,
    api_version: Option<String>,
    cluster: Option<Value>,
    timeout: Duration,
}

/// Credentials that a program has issued.
pub(super) struct Issued {
    pub(super) token: Option<SecretString>,
    pub(super) identity: Option<Identity>,
}

/// Client certificate and its key, in PEM.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: SecretString,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate && self.key.expose_secret() == other.key.expose_secret()
    }
}

/// Output of a program, as far as it is read.
#[derive(Deserialize)]
struct ExecCredential {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    /// Makes the program of a user of a kubeconfig. Runs nothing.
    pub(super) fn new(user: &str, exec: &ExecConfig) -> Result<Self, String> {
        let command = exec.command.clone().filter(|command| !command.is_empty());
        let command = command.ok_or("exec has no command: expected the name of a credential program")?;
        let variable = |entry: &std::collections::HashMap<String, String>| {
            Some((entry.get("name")?.clone(), entry.get("value")?.clone()))
        };
        let cluster = exec.cluster.as_ref().filter(|_| exec.provide_cluster_info);
        let cluster = cluster.map(serde_json::to_value).transpose();
        Ok(Self {
            user: user.to_owned(),
            command,
            args: exec.args.clone().unwrap_or_default(),
            env: exec.env.iter().flatten().filter_map(variable).collect(),
            // one line of the log
            hint: exec.install_hint.iter().flat_map(|hint| hint.split_whitespace()).collect::<Vec<_>>().join(" "),
            mode: exec.interactive_mode.clone(),
            api_version: exec.api_version.clone(),
            cluster: cluster.map_err(|error| format!("cannot describe the cluster to {:?}: {error}", exec.command))?,
            timeout: TIMEOUT,
        })
    }

    /// Makes a program with another timeout.
    #[cfg(test)]
    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Runs the program, and returns the credentials and their expiry. Blocks until it ends, at most for its timeout.
    pub(super) fn run(&self) -> Result<(Issued, Option<Timestamp>), CredentialError> {
        let is_interactive = self.mode != Some(ExecInteractiveMode::Never) && io::stdin().is_terminal();
        if self.mode == Some(ExecInteractiveMode::Always) && !is_interactive {
            return Err(self.error("needs a terminal (interactiveMode: Always), but standard input is not a terminal"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.error(&format!("cannot be run: {error}")))?;
        let output = runtime.block_on(self.output(is_interactive))?;
        self.read(&output)
    }

    async fn output(&self, is_interactive: bool) -> Result<Vec<u8>, CredentialError> {
        let mut child = self.start(is_interactive).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotFound => format!("cannot be started: there is no such program ({error})"),
                _ => format!("cannot be started: {error}"),
            };
            self.error(&what)
        })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).filter(|_| !is_interactive);
        let limit = if is_interactive { TIMEOUT_INTERACTIVE } else { self.timeout };
        let outcome = timeout(limit, self.wait(&mut child)).await;
        if !matches!(outcome, Ok(Ok(_)))
            && let Some(group) = group
        {
            let _ended_before = kill_process_group(group, Signal::KILL);
        }
        outcome.map_err(|_| self.error(&format!("did not end within {limit:?}")))?
    }

    async fn wait(&self, child: &mut Child) -> Result<Vec<u8>, CredentialError> {
        let failed = |error: io::Error| self.error(&format!("cannot be waited for: {error}"));
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(OUTPUT_MAX + 1).read_to_end(&mut output).await.map_err(failed)?;
        }
        if output.len() as u64 > OUTPUT_MAX {
            return Err(self.error(&format!("printed more than {OUTPUT_MAX} bytes: expected an ExecCredential")));
        }
        let status = child.wait().await.map_err(failed)?;
        if status.success() {
            return Ok(output);
        }
        Err(self.error(&format!("failed with {status}; its output is hidden, as it may hold a secret: run it by hand")))
    }

    fn start(&self, is_interactive: bool) -> io::Result<Child> {
        let info = json!({
            "kind": "ExecCredential",
            "apiVersion": self.api_version,
            "spec": if let Some(cluster) = &self.cluster {
                json!({ "interactive": is_interactive, "cluster": cluster })
            } else {
                json!({ "interactive": is_interactive })
            },
        });
        let mut command = Command::new(&self.command);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(if is_interactive { Stdio::inherit() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(if io::stderr().is_terminal() { Stdio::inherit() } else { Stdio::null() })
            .kill_on_drop(true);
        if !is_interactive {
            command.process_group(0); // a program of another group could not read from the terminal
        }
        command.spawn()
    }

    /// Reads the output of a program. An error never shows a part of it.
    fn read(&self, output: &[u8]) -> Result<(Issued, Option<Timestamp>), CredentialError> {
        let no_credential =
            || self.error("printed no ExecCredential: expected JSON with `status.token`, or a client certificate");
        let read: Option<ExecCredential> = serde_saphyr::from_slice(output).ok();
        let status = read.and_then(|credential| credential.status).ok_or_else(no_credential)?;
        let identity = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key: key.into() }),
            (None, None) => None,
            _ => return Err(self.error("printed only one of clientCertificateData and clientKeyData: expected both")),
        };
        if status.token.is_none() && identity.is_none() {
            return Err(no_credential());
        }
        let expires = status.expiration_timestamp.map(|at| at.parse()).transpose();
        let expires = expires.map_err(|_| {
            self.error("printed an invalid expirationTimestamp: expected one such as 2030-01-02T03:04:05Z")
        })?;
        Ok((Issued { token: status.token.map(Into::into), identity }, expires))
    }

    /// Makes an error with the name of the program and its advice.
    pub(super) fn error(&self, what: &str) -> CredentialError {
        let Self { command, user, hint, .. } = self;
        let hint = if hint.is_empty() { String::new() } else { format!("; installHint: {hint}") };
        CredentialError::new(&format!("credential program {command:?} of user {user:?} {what}{hint}"))
    }
}
