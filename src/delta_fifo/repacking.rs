//! Stepwise repacking of the known objects whose dictionary is being retired.

use std::sync::{Arc, Weak};

use super::known::Known;
use crate::object::{Object, codec::Dictionary, packer::Packer};

/// Number of objects per step. A step takes some milliseconds.
const OBJECTS_A_STEP: usize = 256;

/// Progress of the repacking.
#[derive(Debug, Default)]
pub(super) struct Repacking {
    /// Dictionary whose objects were put into `left` last.
    retired: Weak<Dictionary>,
    left: Vec<Object>,
}

impl Repacking {
    /// Packs the next objects with the newest dictionary, and returns them.
    pub(super) fn step(&mut self, packer: &Packer, known: &mut Known) -> Vec<Object> {
        if let Some(retiring) = packer.retiring()
            && self.retired.as_ptr() != Arc::as_ptr(&retiring)
        {
            self.left = known.iter().filter(|object| object.is_packed_with(&retiring)).cloned().collect();
            self.retired = Arc::downgrade(&retiring);
        }
        let mut repacked = Vec::new();
        while repacked.is_empty() && !self.left.is_empty() {
            for object in self.left.split_off(self.left.len().saturating_sub(OBJECTS_A_STEP)) {
                // Changed or deleted objects no longer use the retiring dictionary.
                if let Some(known) = known.get_mut(object.key()).filter(|known| known.ptr_eq(&object)) {
                    *known = packer.repack(&object);
                    repacked.push(known.clone());
                }
            }
        }
        if self.left.is_empty() {
            self.left = Vec::new(); // frees its memory too
        }
        repacked
    }
}
