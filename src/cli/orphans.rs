//! Reaping of orphans.

use std::{collections::HashSet, fs, time::Duration};

use rustix::process::{Pid, WaitOptions, waitpid};

/// Reaper of orphans, for process 1 of a container: the kernel makes it the parent of each process whose parent has ended.
///
/// The children of this process are reaped by the code that started them. That takes a moment, so a child is an orphan if it has
/// ended and is still there at the next look.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    /// Ended children at the last look, with their start times.
    ended: HashSet<(i32, u64)>,
}

impl Reaper {
    /// Time between two looks.
    pub(super) const INTERVAL: Duration = Duration::from_secs(10);

    /// Looks for ended children, and reaps those that were there at the last look.
    pub(super) fn look(&mut self) {
        for pid in self.orphans(ended_children()) {
            let _reaped_by_another = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    fn orphans(&mut self, ended: HashSet<(i32, u64)>) -> Vec<Pid> {
        let before = std::mem::replace(&mut self.ended, ended);
        self.ended.intersection(&before).filter_map(|(pid, _)| Pid::from_raw(*pid)).collect()
    }
}

/// Returns the ids and start times of the children of this process that have ended and were not reaped.
fn ended_children() -> HashSet<(i32, u64)> {
    let own = std::process::id().to_string();
    let ended = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The second field is the program's name in parentheses, and may contain any character.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let is_ended = fields.first() == Some(&"Z") && fields.get(1) == Some(&own.as_str());
        is_ended.then_some((pid, fields.get(19)?.parse().ok()?))
    };
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| ended(entry.ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    #[expect(clippy::zombie_processes, reason = "the reaper waits for it")]
    fn child_that_stays_ended_is_reaped() {
        let child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let is_there = || ended_children().iter().any(|(ended, _)| *ended == pid);
        while !is_there() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Children of other tests are not for this reaper.
        let ours = || ended_children().into_iter().filter(|(ended, _)| *ended == pid).collect::<HashSet<_>>();
        let mut reaper = Reaper::default();
        assert!(reaper.orphans(ours()).is_empty(), "its parent may still wait for it");
        let orphans = reaper.orphans(ours());
        assert_eq!(orphans, [Pid::from_raw(pid).unwrap()]);
        waitpid(Some(orphans[0]), WaitOptions::NOHANG).unwrap();
        assert!(!is_there());
        assert!(reaper.orphans(ours()).is_empty());
    }
}
