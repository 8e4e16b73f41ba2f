//! What benches that start processes of their own have in common.

pub(crate) mod measure;
pub(crate) mod process;
