//! `[http] max_response_bytes`: a budget for the bytes of all responses that are being written.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Size in bytes up to which a response is never refused, so that health checks work.
const SMALL: u64 = 16 << 10;

/// Bytes of the responses that one server is writing.
#[derive(Debug)]
pub(super) struct ResponseBudget {
    max: u64,
    used: AtomicU64,
}

impl ResponseBudget {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicU64::new(0) })
    }

    /// Returns true if a large response would be refused now.
    pub(super) fn is_exhausted(&self) -> bool {
        self.used.load(Relaxed) >= self.max
    }

    /// Charges the bytes of a response. Returns `None` if the budget is exhausted and the response is not small. A response may
    /// exceed the rest of the budget. Otherwise, a response above the whole budget could never be written.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        if bytes > SMALL && self.is_exhausted() {
            return None;
        }
        self.used.fetch_add(bytes, Relaxed);
        Some(Charge { budget: Arc::clone(self), bytes })
    }
}

/// Bytes of the budget that one response occupies. Dropping this value releases the bytes that were not released before.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Arc<ResponseBudget>,
    bytes: u64,
}

impl Charge {
    /// Releases bytes that were written.
    pub(super) fn release(&mut self, written: u64) {
        let released = written.min(self.bytes);
        self.bytes -= released;
        self.budget.used.fetch_sub(released, Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answer_waits_for_shared_budget() {
        let budget = ResponseBudget::new(100 << 10);
        let mut first = budget.charge(200 << 10).unwrap();
        assert!(budget.charge(SMALL + 1).is_none(), "exhausted");
        let small = budget.charge(SMALL);
        assert!(small.is_some(), "a small one always passes");
        first.release(120 << 10);
        let second = budget.charge(50 << 10);
        assert!(second.is_some(), "80 + 16 of 100 KiB are in use");
        first.release(1 << 30);
        drop((first, second, small));
        assert_eq!(budget.used.load(Relaxed), 0);
    }
}
