//! A request for a type that is served.

use std::sync::{Arc, atomic::AtomicBool};

use super::{
    super::{error::ApiError, faults::ServerFault, selector::RequestSelector, store::TypeId, types::TypeInfo},
    Shared,
    request::{Call, Resource},
};

/// A request for a served type, with its context.
pub(super) struct Ask<'a> {
    pub(super) shared: &'a Arc<Shared>,
    /// Flag that makes the connection end with RST instead of FIN.
    pub(super) resets: &'a Arc<AtomicBool>,
    pub(super) call: &'a Call,
    pub(super) resource: &'a Resource,
    pub(super) id: TypeId,
    pub(super) info: Arc<TypeInfo>,
    pub(super) faults: &'a [ServerFault],
}

impl Ask<'_> {
    pub(super) fn selector(&self) -> Result<RequestSelector, ApiError> {
        RequestSelector::parse(&self.info, self.call.param("labelSelector"), self.call.param("fieldSelector"))
    }
}
