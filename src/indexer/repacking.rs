//! Repacking of cached objects whose dictionary is being retired, in steps.

use std::sync::Arc;

use crate::object::{Object, codec::Dictionary};

/// Number of objects per step. A step takes some milliseconds.
const OBJECTS_A_STEP: usize = 256;

/// Progress of the repacking.
#[derive(Debug, Default)]
pub(super) struct Repacking {
    /// Number of retirements when the repacking last started.
    retirements: u64,
    left: Vec<Object>,
}

impl Repacking {
    /// Starts again after a new retirement: collects the objects that are packed with the retiring dictionary.
    pub(super) fn begin(
        &mut self,
        retirements: u64,
        retiring: Option<&Arc<Dictionary>>,
        objects: impl FnOnce(&mut dyn FnMut(&Object)),
    ) {
        if self.retirements == retirements {
            return;
        }
        self.retirements = retirements;
        self.left = Vec::new();
        if let Some(retiring) = retiring {
            objects(&mut |object| {
                if object.is_packed_with(retiring) {
                    self.left.push(object.clone());
                }
            });
        }
    }

    /// Returns the objects of the next step and, with the last step, the number of retirements.
    pub(super) fn next_step(&mut self) -> (Vec<Object>, Option<u64>) {
        let step = self.left.split_off(self.left.len().saturating_sub(OBJECTS_A_STEP));
        let done = self.left.is_empty().then_some(self.retirements);
        if done.is_some() {
            self.left = Vec::new(); // frees its memory too
        }
        (step, done)
    }
}
