//! Histograms shared by all units of an engine.

use crate::histogram::Histogram;

/// Histograms for all units of an engine. With hundreds of types, one histogram per unit would be too many series.
#[derive(Debug)]
pub struct Timings {
    /// Duration from the request for a watch or streaming list to the head of its answer, in seconds. Only successful
    /// ones count.
    pub watch_open: Histogram,
    /// Duration from the decoding of a watch event until its batch is applied, published and released, in seconds.
    pub event_age: Histogram,
    /// Number of deltas in a batch for an indexer.
    pub batch_events: Histogram,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            watch_open: Histogram::new(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
            event_age: Histogram::new(&[
                0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
            ]),
            batch_events: Histogram::new(&[1.0, 4.0, 16.0, 64.0, 256.0, 1_000.0, 4_000.0, 16_000.0, 64_000.0]),
        }
    }
}

/// Upper bounds for the duration of a list, in seconds. Few, because each unit has its own histogram.
pub(super) const LIST_BOUNDS: &[f64] = &[0.025, 0.1, 0.5, 2.5, 10.0, 60.0];
