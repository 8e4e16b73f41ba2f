//! Resolution of configured names to served types: `deployments.apps` → a
//! [`ResourceType`](crate::object::ResourceType).
//!
//! ```text
//! documents   aggregated (1.26 and later) or legacy discovery documents → groups, versions, types (pure)
//! catalog     Catalog: every served type in kubectl's order of preference; finds those of a Pattern (pure)
//! pattern     a type in kubectl's syntax (pure)
//! selection   select: which entry watches which type (pure)
//! assumed     Assumed: a catalog without access to a server (pure)
//! openapi     Schemas: the fields of the types of one group and version (pure)
//! schema_reader  SchemaReader: requests the schemas of a server
//! ask         discover, cluster_uid, allowed, refused_fields: the requests
//! ```
//!
//! **Invariant:** if the discovery of one API group fails, the catalog still has the other groups. [`Catalog::unavailable`] has
//! the error.

mod ask;
mod assumed;
mod built_in;
mod catalog;
mod documents;
mod openapi;
mod pattern;
mod schema_reader;
mod selection;
#[cfg(test)]
mod tests;

pub(crate) use ask::{
    DiscoveryError, ScopedType, TypeAccess, allowed, allowed_each, cluster_uid, count_each, discover, discover_for,
    namespaces, refused_fields,
};
pub(crate) use assumed::{Assumed, ObjectType};
pub(crate) use built_in::built_in;
pub(crate) use catalog::{Catalog, Resolution, ServedType, identity};
pub(crate) use openapi::{FieldPresence, KnownValue, Schemas};
pub(crate) use pattern::{Pattern, PatternError};
pub(crate) use schema_reader::SchemaReader;
pub(crate) use selection::{Conflict, Owned, Selection, Unmatched, WantedEntry, depends_on_crds, select};
