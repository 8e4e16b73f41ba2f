//! Packs what a cache holds anew once a dictionary is on its way out (D7), some at a time.

use std::sync::Arc;

use crate::object::{Object, codec::Dictionary};

/// Objects looked at a step: some milliseconds.
const OBJECTS_A_STEP: usize = 256;

/// What is left to do.
#[derive(Debug, Default)]
pub(super) struct Repacking {
    /// What it is done for.
    retirements: u64,
    left: Vec<Object>,
}

impl Repacking {
    /// Begins for another retirement: with those objects that its dictionary packs.
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

    /// Takes what the next step looks at, and whether that is the last of it.
    pub(super) fn next_step(&mut self) -> (Vec<Object>, Option<u64>) {
        let step = self.left.split_off(self.left.len().saturating_sub(OBJECTS_A_STEP));
        let done = self.left.is_empty().then_some(self.retirements);
        if done.is_some() {
            self.left = Vec::new(); // its room too
        }
        (step, done)
    }
}
