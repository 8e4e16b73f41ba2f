//! Pods and custom resources of the workload, rendered from templates without parsing.

use std::{borrow::Cow, sync::LazyLock};

use super::{
    super::{random::Random, store::RawObject, template::ObjectTemplate},
    POD, RUNNING, WEBSITE, with_plain_values,
};
use crate::object::ObjectKey;

/// Values of one object.
#[derive(Clone, Debug, Default)]
pub(super) struct Fill {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) app: String,
    pub(super) owner: String,
    pub(super) owner_kind: &'static str,
    pub(super) owner_uid: String,
    pub(super) hash: String,
    pub(super) node: usize,
    pub(super) image: String,
    pub(super) number: usize,
    pub(super) restarts: u64,
    pub(super) ready: bool,
    pub(super) created: String,
    pub(super) time: String,
    /// JSON of the whole status. If empty, the pod gets the default status of a running pod.
    pub(super) status: String,
}

/// Function that returns a value of an object.
type Value = fn(&Fill) -> Cow<'_, str>;

/// Two templates: of the JSON before the version, and of the JSON after the version.
type Halves = [ObjectTemplate<Value>; 2];

impl Fill {
    /// Renders a pod.
    pub(super) fn pod(&self) -> RawObject {
        static WITH_STATUS: LazyLock<Halves> = LazyLock::new(|| halves(POD));
        static IS_RUNNING: LazyLock<Halves> = LazyLock::new(|| halves(&POD.replace("${STATUS}", RUNNING)));
        self.render(if self.status.is_empty() { &IS_RUNNING } else { &WITH_STATUS })
    }

    /// Renders a custom resource.
    pub(super) fn custom_resource(&self) -> RawObject {
        static HALVES: LazyLock<Halves> = LazyLock::new(|| halves(WEBSITE));
        self.render(&HALVES)
    }

    fn render(&self, halves: &Halves) -> RawObject {
        let [before, after] = halves.each_ref().map(|half| {
            let mut out = Vec::with_capacity(8_000);
            half.render(&mut out, |value, out| out.extend_from_slice(value(self).as_bytes()));
            out
        });
        RawObject { key: ObjectKey::new(&self.namespace, &self.name), before, after }
    }
}

/// Compiles a template of one JSON object, without the opening brace: the store writes the brace with `kind` and `apiVersion`.
fn halves(text: &str) -> Halves {
    let text = with_plain_values(text);
    let (before, after) = text.split_once("${VERSION}").expect("a template has a version");
    let field = |hole: &str| (String::new(), Some(value(hole)));
    [before.trim_start_matches('{'), after].map(|half| ObjectTemplate::compile(half, field))
}

/// Maps the name of a hole to the function that computes its content.
fn value(hole: &str) -> Value {
    match hole {
        "NAME" => |fill| fill.name.as_str().into(),
        "NS" => |fill| fill.namespace.as_str().into(),
        "UID" => |fill| fill.uid.as_str().into(),
        "APP" => |fill| fill.app.as_str().into(),
        "OWNER" => |fill| fill.owner.as_str().into(),
        "OWNERKIND" => |fill| fill.owner_kind.into(),
        "OWNERAPI" => |fill| if fill.owner_kind == "Job" { "batch/v1" } else { "apps/v1" }.into(),
        "OWNERUID" => |fill| fill.owner_uid.as_str().into(),
        "RESTART" => |fill| if fill.owner_kind == "Job" { "Never" } else { "Always" }.into(),
        "HASH" => |fill| fill.hash.as_str().into(),
        "IMAGE" => |fill| fill.image.as_str().into(),
        "CREATED" => |fill| fill.created.as_str().into(),
        "TIME" => |fill| fill.time.as_str().into(),
        "READY" => |fill| if fill.ready { "True" } else { "False" }.into(),
        "READYBOOL" => |fill| if fill.ready { "true" } else { "false" }.into(),
        "NODE" => |fill| format!("node-{:04}", fill.node).into(),
        "RESTARTS" => |fill| fill.restarts.to_string().into(),
        "IP" => |fill| address(10, fill.number).into(),
        "HOSTIP" => |fill| address(172, fill.node).into(),
        "STATUS" => |fill| fill.status.as_str().into(),
        "DIGEST" => |fill| digest(fill.number).into(),
        "TEAM" => |fill| format!("team-{}", fill.app.len() % 7).into(),
        hole => panic!("no value for ${{{hole}}}"),
    }
}

pub(super) fn address(first: u8, number: usize) -> String {
    format!("{first}.{}.{}.{}", (number >> 16) & 0xff, (number >> 8) & 0xff, number & 0xff)
}

fn digest(number: usize) -> String {
    let mut random = Random::new(number as u64);
    let mut half = || (u128::from(random.next_u64()) << 64) | u128::from(random.next_u64());
    format!("{:032x}{:032x}", half(), half())
}
