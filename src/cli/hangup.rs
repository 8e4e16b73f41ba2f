//! SIGHUP: a request to apply changed files, or the end of the terminal.

use std::{fs, fs::File, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Device that is the controlling terminal of the process that opens it.
const TERMINAL: &str = "/dev/tty";

/// Receiver of SIGHUP that knows the terminal of the process.
pub(crate) struct Hangup {
    signal: Signal,
    /// Set if the process had a terminal at the start, and was not started with `nohup`.
    has_terminal: bool,
}

/// Meaning of a SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangupMeaning {
    /// Someone sent the signal.
    Requested,
    /// The terminal was closed, or the connection to it has ended. The kernel or the shell sent the signal.
    TerminalClosed,
}

impl Hangup {
    /// Registers the receiver. From then on the signal does not end the process.
    pub(crate) fn new() -> io::Result<Self> {
        let has_terminal = !is_ignored() && is_open();
        Ok(Self { signal: signal(SignalKind::hangup())?, has_terminal })
    }

    /// Returns another receiver. Each receiver gets each signal.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Ok(Self { signal: signal(SignalKind::hangup())?, has_terminal: self.has_terminal })
    }

    /// Waits for the next signal. Dropping the future loses no signal.
    pub(crate) async fn recv(&mut self) -> HangupMeaning {
        self.signal.recv().await;
        // The kernel takes the terminal away before it sends the signal.
        if self.has_terminal && !is_open() { HangupMeaning::TerminalClosed } else { HangupMeaning::Requested }
    }
}

fn is_open() -> bool {
    File::open(TERMINAL).is_ok()
}

/// Returns true if the process ignores SIGHUP, as `nohup` makes it do.
fn is_ignored() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// Reads the mask of ignored signals; SIGHUP is signal 1, its lowest bit.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_recognised_by_its_mask() {
        assert!(ignores_hangup("Name:\tdeltabus\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!ignores_hangup(""));
    }
}
