//! What is measured, in a process of its own: what it costs, phase by phase, and how it says so.

use std::{error::Error, time::Duration};

use deltabus::bench::measure;

use crate::support::{
    measure::{cpu, resident},
    process::Player,
};

/// Begins a line that says how far a phase has come.
const SO_FAR: &str = "~ ";

/// What one phase cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phase {
    /// Time on a processor, all threads.
    pub(crate) cpu: Duration,
    /// From the first sign of the phase to its end.
    pub(crate) wall: Duration,
    /// Resident bytes of the process.
    pub(crate) resident: usize,
    /// Bytes of these that are known to be in use: of an engine the bodies of its objects, of a Go process its heap
    /// after a collection. 0: not known.
    pub(crate) used: usize,
    /// Bytes handed to disks, what was written again counted again; 0 where it is not asked for.
    pub(crate) written: u64,
}

/// How far a phase has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Objects or events of this phase.
    pub(crate) seen: u64,
    /// Nanoseconds on a processor since the process began.
    pub(crate) cpu: u64,
}

/// What one observer cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) sync: Phase,
    pub(crate) events: Phase,
}

/// The process that is measured.
pub(crate) struct Observer(Player);

impl Observer {
    /// Takes a process that calls [`report`], or writes such lines, at the end of each phase.
    pub(crate) fn new(player: Player) -> Self {
        Self(player)
    }

    /// Waits for the end of a phase.
    pub(crate) fn next_phase(&mut self) -> Result<Phase, Box<dyn Error>> {
        self.next_phase_with(|_| Ok(()))
    }

    /// Does something as often as the process says how far it is.
    pub(crate) fn next_phase_with(
        &mut self,
        mut look: impl FnMut(Progress) -> Result<(), Box<dyn Error>>,
    ) -> Result<Phase, Box<dyn Error>> {
        let mut line = self.0.line()?;
        while let Some(progress) = line.strip_prefix(SO_FAR) {
            let (seen, cpu) = progress.split_once(' ').ok_or_else(|| format!("unexpected line {line:?}"))?;
            look(Progress { seen: seen.parse()?, cpu: cpu.parse()? })?;
            line = self.0.line()?;
        }
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let &[cpu, wall, resident, used, ref written @ ..] = &numbers[..] else {
            return Err(format!("unexpected line {line:?}").into());
        };
        Ok(Phase {
            cpu: Duration::from_nanos(cpu),
            wall: Duration::from_nanos(wall),
            resident: usize::try_from(resident)?,
            used: usize::try_from(used)?,
            written: written.first().copied().unwrap_or_default(),
        })
    }
}

/// Tells the coordinating process what a phase cost.
pub(crate) fn report(phase: Phase) {
    let Phase { cpu, wall, resident, used, written } = phase;
    println!("{} {} {resident} {used} {written}", cpu.as_nanos(), wall.as_nanos());
}

/// Tells the coordinating process how far a phase has come.
pub(crate) fn report_progress(seen: u64) {
    println!("{SO_FAR}{seen} {}", measure::cpu());
}

/// What was spent so far, to be compared with later.
pub(crate) struct Meter {
    cpu: Duration,
    written: u64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { cpu: cpu(), written: measure::written() }
    }

    /// Ends a phase that took `wall`, and begins the next.
    pub(crate) fn lap(&mut self, wall: Duration) -> Phase {
        let now = cpu();
        let all_written = measure::written();
        let written = all_written - self.written;
        let phase = Phase { cpu: now.saturating_sub(self.cpu), wall, resident: resident(), used: 0, written };
        (self.cpu, self.written) = (now, all_written);
        phase
    }
}
