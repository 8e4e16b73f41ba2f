//! From what the configuration names to what the server serves: `deployments.apps` → a
//! [`ResourceType`](crate::object::ResourceType).
//!
//! ```text
//! documents   aggregated (1.26 and later) or legacy discovery documents → groups, versions, types (pure)
//! catalog     Catalog: every served type in kubectl's order of preference; resolves a Pattern (pure)
//! pattern     kubectl's spelling of a type (pure)
//! selection   select: which entry watches which type (pure)
//! assumed     Assumed: the catalog of a server that nobody can ask (pure)
//! ask         discover, cluster_uid, allowed, refused_fields: the requests
//! ```
//!
//! **Invariant:** one API group that fails hides no other; it is in [`Catalog::unavailable`] with its error.

mod ask;
mod assumed;
mod built_in;
mod catalog;
mod documents;
mod pattern;
mod selection;
#[cfg(test)]
mod tests;

pub use ask::{
    DiscoveryError, TypeAccess, allowed, allowed_each, cluster_uid, count_each, discover, namespaces, refused_fields,
};
pub use assumed::{Assumed, ObjectType};
pub(crate) use built_in::built_in;
pub use catalog::{Catalog, Resolution, ServedType, TypeIdentity, Unavailable, identity};
pub use pattern::{Pattern, PatternError};
pub use selection::{Conflict, Owned, PatternPlace, Selection, Unmatched, WantedEntry, depends_on_crds, select};
