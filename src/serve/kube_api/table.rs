//! Tables: the columns that `kubectl get` prints, computed here as the API server computes them.
//!
//! ```text
//! kinds    the built-in kinds: their columns and cells, after the server's own printers (1.36)
//! pod      the cells of a pod: a state machine of its own
//! custom   additionalPrinterColumns of custom resource definitions
//! cells    ages, selectors, paths: what cells are made of
//! ```
//!
//! A kind that is not known, or of which only metadata is kept, has its name and its age.

mod cells;
mod custom;
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

/// How objects of one type become rows.
#[derive(Debug)]
pub(super) enum Table {
    /// As the server's own printers do it.
    BuiltIn(&'static Kind),
    /// As a custom resource definition says.
    Custom(Vec<CustomColumn>),
}

impl Table {
    /// Returns the table of a type. `definition` is its custom resource definition, where that is known.
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
                std::iter::once(name).chain(columns.iter().map(CustomColumn::definition)).collect()
            }
        }
    }

    /// Returns the cells of a row, and its `conditions` where there are any.
    pub(super) fn row(&self, object: &Object, now: Timestamp) -> (Value, Option<Value>) {
        // What cannot be read has a name; the rest of its row is empty.
        let value = object.value().unwrap_or_else(|_| json!({"metadata": {"name": object.name()}}));
        let row = Row { object: &value, now };
        match self {
            Self::BuiltIn(kind) => {
                let conditions = if kind.plural == "pods" { pod::conditions(&row) } else { None };
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
