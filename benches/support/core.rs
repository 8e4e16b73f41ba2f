//! One core for what is measured, and how much of that core there was.
//!
//! What a virtual machine takes for a core is one thread of a physical core. While its host runs somebody else on the other
//! thread, the clock goes on as fast, but half of the execution units are gone, and a program takes up to twice the CPU
//! time. The system tells a guest nothing of it; adds that do not wait for each other do: then two go through in a cycle
//! where it were nearly four.

use std::error::Error;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::{
    observer::{Observer, Phase, Progress},
    process::Player,
};

/// A core of which there was at least so much of the most that was seen counts as whole.
const NEARLY: f64 = 0.92;
/// So many slices may seem wider than the core is: the clock was read at a bad moment.
const OUTLIERS: usize = 8;
/// Slices in which the core was whole, for a figure to be made of them.
const ENOUGH: usize = 40;

/// The core on which observers run. This process, and what it starts otherwise, has the others.
pub(crate) struct Core {
    one: CpuSet,
    others: CpuSet,
}

/// A part of a phase, some milliseconds long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// Nanoseconds on the core.
    cpu: u64,
    /// Objects or events.
    seen: u64,
    /// How wide the core was at its ends, the lesser of both.
    width: f64,
}

impl Core {
    /// Takes the first core that this process may use; where there is one only, it is shared.
    pub(crate) fn reserve() -> Result<Self, Box<dyn Error>> {
        let mut others = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| others.is_set(*cpu)).ok_or("no core may be used")?;
        if others.count() > 1 {
            others.unset(first);
        }
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &others)?;
        Ok(Self { one, others })
    }

    /// Starts an observer that runs on this core alone.
    pub(crate) fn start(&self, role: &str, args: &[String]) -> Result<Observer, Box<dyn Error>> {
        let player = self.on_it(|| Player::start(role, args))?;
        Ok(Observer::new(player?))
    }

    /// Waits for the end of an observer's phase, and looks at the core as often as the observer says how far it is.
    pub(crate) fn next_phase(&self, observer: &mut Observer) -> Result<(Phase, Vec<Slice>), Box<dyn Error>> {
        let mut slices = Vec::new();
        let mut before: Option<(Progress, f64)> = None;
        let phase = observer.next_phase_with(|now| {
            let wide = self.on_it(width)?;
            if let Some((then, was_wide)) = before.replace((now, wide)) {
                slices.push(Slice { cpu: now.cpu - then.cpu, seen: now.seen - then.seen, width: was_wide.min(wide) });
            }
            Ok(())
        })?;
        Ok((phase, slices))
    }

    fn on_it<T>(&self, work: impl FnOnce() -> T) -> rustix::io::Result<T> {
        sched_setaffinity(None, &self.one)?;
        let done = work();
        sched_setaffinity(None, &self.others)?;
        Ok(done)
    }
}

/// Returns how wide the core was when it was widest, a few outliers left out.
pub(crate) fn widest<'a>(slices: impl Iterator<Item = &'a Slice>) -> f64 {
    let mut widths: Vec<f64> = slices.map(|slice| slice.width).collect();
    widths.sort_by(f64::total_cmp);
    widths.iter().rev().nth(OUTLIERS).copied().unwrap_or_default()
}

/// Returns the nanoseconds that each of `count` would have taken on a core that was whole all the time, and in how many
/// slices it was: what those slices took for each that was seen in them, and what the phases took outside of all slices. None
/// where they were few: what is seen comes in lumps.
#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
pub(crate) fn on_whole_core(phases: &[(Phase, &[Slice])], count: usize, widest: f64) -> Option<(f64, usize)> {
    let all: Vec<&Slice> = phases.iter().flat_map(|(_, slices)| slices.iter()).collect();
    let whole: Vec<&Slice> = all.iter().filter(|slice| slice.width >= NEARLY * widest).copied().collect();
    let cpu = |slices: &[&Slice]| slices.iter().map(|slice| slice.cpu).sum::<u64>() as f64;
    let total: f64 = phases.iter().map(|(phase, _)| phase.cpu.as_nanos() as f64).sum();
    let outside = (total - cpu(&all)) / (phases.len() * count) as f64;
    let seen: u64 = whole.iter().map(|slice| slice.seen).sum();
    let seen = seen as f64;
    if whole.len() < ENOUGH || seen < count as f64 {
        return None;
    }
    Some((cpu(&whole) / seen + outside, whole.len()))
}

/// Returns how many adds go through at a time: those that wait for each other beside those that do not. What is added lies in
/// a register: processors since Intel's Golden Cove add up constants ahead of time, and then no add waits.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a compiler would add it all up beforehand")]
fn width() -> f64 {
    use std::arch::asm;

    const ADDS: u64 = 50_000;
    let chain = || {
        // SAFETY: registers alone are written to, and the compiler is told which.
        unsafe {
            asm!(
                "2:", "add {a}, {one}", "add {a}, {one}", "add {a}, {one}", "add {a}, {one}", "add {a}, {one}",
                "add {a}, {one}", "add {a}, {one}", "add {a}, {one}", "sub {n}, 8", "jnz 2b",
                a = inout(reg) 0_u64 => _, n = inout(reg) ADDS => _, one = in(reg) 1_u64, options(nomem, nostack)
            );
        }
    };
    let beside = || {
        // SAFETY: as above.
        unsafe {
            asm!(
                "2:", "add {a}, {one}", "add {b}, {one}", "add {c}, {one}", "add {d}, {one}", "add {e}, {one}",
                "add {f}, {one}", "add {g}, {one}", "add {h}, {one}", "sub {n}, 8", "jnz 2b",
                a = inout(reg) 0_u64 => _, b = inout(reg) 0_u64 => _, c = inout(reg) 0_u64 => _,
                d = inout(reg) 0_u64 => _, e = inout(reg) 0_u64 => _, f = inout(reg) 0_u64 => _,
                g = inout(reg) 0_u64 => _, h = inout(reg) 0_u64 => _,
                n = inout(reg) ADDS => _, one = in(reg) 1_u64, options(nomem, nostack)
            );
        }
    };
    let [chain, beside] = [[(); 3].map(|()| time(chain)), [(); 3].map(|()| time(beside))];
    // A host that takes the core away for a moment counts as time of the thread; it must not make the core look wide.
    chain.into_iter().fold(f64::INFINITY, f64::min) / beside.into_iter().fold(0.0, f64::max)
}

/// It is not known: every core counts as whole.
#[cfg(not(target_arch = "x86_64"))]
fn width() -> f64 {
    1.0
}

/// Returns the CPU time of this thread that something takes, in seconds.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_precision_loss, reason = "seconds and nanoseconds of less than a day")]
fn time(work: impl FnOnce()) -> f64 {
    use rustix::time::{ClockId, clock_gettime};

    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let began = now();
    work();
    now() - began
}
