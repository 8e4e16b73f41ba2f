//! Fakes for tests of components that use a [`ListWatch`](crate::list_watch::ListWatch).
//!
//! [`Collection`] is a pure model of one collection of an API server: objects, versions, history, compaction.
//! [`FakeApiServer`] serves it, records the requests, and injects faults on demand.

mod collection;
mod fake_api_server;

pub(crate) use collection::{Collection, Cursor, changed_at};
pub(crate) use fake_api_server::{FakeApiServer, Request};

use crate::{
    list_watch::{Failure, Status},
    object::{Identity, Object},
};

/// Creates a config map in namespace `default`.
pub(crate) fn object(name: &str, version: &str) -> Object {
    object_with_uid(name, &format!("uid-{name}"), version)
}

/// Creates a config map in namespace `default` with this uid.
pub(crate) fn object_with_uid(name: &str, uid: &str, version: &str) -> Object {
    let identity = Identity { namespace: "default", name, uid, resource_version: version };
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"namespace":"default","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#
    );
    Object::assemble(identity, &[json.as_bytes()])
}

/// Creates an error answer with only a code.
pub(crate) fn status(code: u16) -> Failure {
    Failure::Status(Status { code, ..Status::default() })
}

/// Creates the answer 410 `Expired`.
pub(crate) fn expired() -> Failure {
    Failure::Status(Status { code: 410, reason: "Expired".into(), ..Status::default() })
}

/// Creates the answer "Too large resource version".
pub(crate) fn too_large() -> Failure {
    Failure::Status(Status { code: 504, reason: "Timeout".into(), too_large: true, ..Status::default() })
}
