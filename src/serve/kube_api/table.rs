//! Tables: the columns that `kubectl get` prints, computed as in the API server.
//!
//! ```text
//! kinds    the built-in kinds: their columns and cells, after the API server's printers (1.36)
//! pod      the cells of a pod, which need a state machine
//! custom   additionalPrinterColumns of custom resource definitions, with json_path
//! cells    values of cells: ages, selectors
//! ```
//!
//! Rows have only the columns Name and Age if their kind is unknown, or if the cache keeps only metadata.

mod cells;
mod custom;
mod json_path;
mod kinds;
mod pod;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::{
    cells::Row,
    custom::CustomColumn,
    kinds::{Kind, NAME_AND_AGE},
};
use crate::object::{Object, ResourceType};

pub(crate) use cells::label_selector;
#[cfg(any(feature = "cli", test))]
pub(crate) use json_path::JsonPath;
#[cfg(feature = "cli")]
pub(crate) use json_path::{FindError, action_end};

/// Conversion of the objects of one type to rows.
#[derive(Debug)]
pub(super) enum Table {
    /// Columns of the API server's printers.
    BuiltIn(&'static Kind),
    /// Columns of a custom resource definition.
    Custom(Vec<CustomColumn>),
}

impl Table {
    /// Returns the table of a type. `definition` is its custom resource definition, if that is known.
    pub(super) fn of(resource: &ResourceType, is_metadata_only: bool, definition: Option<&Value>) -> Self {
        if is_metadata_only {
            return Self::BuiltIn(&NAME_AND_AGE);
        }
        let custom = definition.map(|definition| custom::columns(definition, &resource.version)).unwrap_or_default();
        if custom.is_empty() { Self::BuiltIn(kinds::of(resource)) } else { Self::Custom(custom) }
    }

    /// Returns `columnDefinitions`.
    pub(super) fn columns(&self) -> Vec<Value> {
        match self {
            Self::BuiltIn(kind) => {
                let column = |(name, kind, is_wide)| {
                    let format = if name == "Name" { "name" } else { "" };
                    definition(name, kind, format, "", i64::from(is_wide))
                };
                kind.columns().map(column).collect()
            }
            Self::Custom(columns) => {
                let name = definition("Name", "string", "name", "", 0);
                std::iter::once(name).chain(columns.iter().map(|column| column.definition.clone())).collect()
            }
        }
    }

    /// Returns the cells of a row, and its `conditions` if it has any.
    pub(super) fn row(&self, object: &Object, now: Timestamp) -> (Value, Option<Value>) {
        // An object that cannot be parsed shows only its name.
        let value = object.value().unwrap_or_else(|_| json!({"metadata": {"name": object.name()}}));
        let row = Row { object: &value, now };
        match self {
            Self::BuiltIn(kind) => {
                let conditions = if kind.name == "pods" { pod::conditions(&row) } else { None };
                ((kind.cells)(&row).into(), conditions)
            }
            Self::Custom(columns) => {
                let name = std::iter::once(row.text("/metadata/name").into());
                (name.chain(columns.iter().map(|column| column.cell(&row))).collect(), None)
            }
        }
    }
}

fn definition(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}
