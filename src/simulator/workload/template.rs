//! JSON templates with `${NAME}` holes, rendered without parsing: fast enough for benches.

use super::super::{random::Random, store::RawObject};
use crate::object::ObjectKey;

/// What is put into the holes of one object.
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
    /// JSON of the whole status; empty for the running one.
    pub(super) status: String,
    /// Random values in place of those that all objects of an application share.
    pub(super) diverse: Option<u64>,
}

/// What a hole is for, by the name it has in the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    Name,
    Namespace,
    Uid,
    App,
    Owner,
    OwnerKind,
    OwnerApi,
    OwnerUid,
    Restart,
    Hash,
    Image,
    Created,
    Time,
    Ready,
    ReadyBool,
    Node,
    Restarts,
    Ip,
    HostIp,
    Version,
    Status,
    Digest,
    Memory,
    Cpu,
    Tag,
    Team,
    Note,
    Level,
    Database,
    Cache,
    Features,
    /// Any other: an argument.
    Other,
}

impl Hole {
    fn of(name: &str) -> Self {
        match name {
            "NAME" => Self::Name,
            "NS" => Self::Namespace,
            "UID" => Self::Uid,
            "APP" => Self::App,
            "OWNER" => Self::Owner,
            "OWNERKIND" => Self::OwnerKind,
            "OWNERAPI" => Self::OwnerApi,
            "OWNERUID" => Self::OwnerUid,
            "RESTART" => Self::Restart,
            "HASH" => Self::Hash,
            "IMAGE" => Self::Image,
            "CREATED" => Self::Created,
            "TIME" => Self::Time,
            "READY" => Self::Ready,
            "READYBOOL" => Self::ReadyBool,
            "NODE" => Self::Node,
            "RESTARTS" => Self::Restarts,
            "IP" => Self::Ip,
            "HOSTIP" => Self::HostIp,
            "VERSION" => Self::Version,
            "STATUS" => Self::Status,
            "DIGEST" => Self::Digest,
            "MEM" => Self::Memory,
            "CPU" => Self::Cpu,
            "TAG" => Self::Tag,
            "TEAM" => Self::Team,
            "NOTE" => Self::Note,
            "E1" => Self::Level,
            "E2" => Self::Database,
            "E3" => Self::Cache,
            "E4" => Self::Features,
            _ => Self::Other,
        }
    }
}

/// A template cut at its holes.
#[derive(Debug)]
pub(super) struct Template {
    /// Text, and the hole that follows it.
    pieces: Vec<(String, Hole)>,
    tail: String,
}

impl Template {
    /// Compiles a template; its line breaks do not count.
    pub(super) fn compile(text: &str) -> Self {
        let text: String = text.lines().map(str::trim).collect();
        let mut rest = text.as_str();
        let mut pieces = Vec::new();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((hole, after)) = after.split_once('}') else { break };
            pieces.push((before.to_owned(), Hole::of(hole)));
            rest = after;
        }
        Self { pieces, tail: rest.to_owned() }
    }

    /// Renders an object; the template is one JSON object that begins with `metadata`.
    pub(super) fn object(&self, fill: &Fill, running: &Self) -> RawObject {
        let mut before = Vec::with_capacity(6_000);
        let mut after = Vec::new();
        let mut into = &mut before;
        let mut random = fill.diverse.map(Random::new);
        for (text, hole) in &self.pieces {
            into.extend_from_slice(text.as_bytes());
            match *hole {
                Hole::Version => {
                    into = &mut after;
                    into.reserve(8_000);
                }
                Hole::Status if fill.status.is_empty() => running.render(fill, &mut random, into),
                Hole::Status => into.extend_from_slice(fill.status.as_bytes()),
                hole => fill.put(hole, &mut random, into),
            }
        }
        into.extend_from_slice(self.tail.as_bytes());
        before.remove(0); // the opening brace: apiVersion and kind go before
        RawObject { key: ObjectKey::new(&fill.namespace, &fill.name), before, after }
    }

    fn render(&self, fill: &Fill, random: &mut Option<Random>, into: &mut Vec<u8>) {
        for (text, hole) in &self.pieces {
            into.extend_from_slice(text.as_bytes());
            fill.put(*hole, random, into);
        }
        into.extend_from_slice(self.tail.as_bytes());
    }
}

impl Fill {
    fn put(&self, hole: Hole, random: &mut Option<Random>, into: &mut Vec<u8>) {
        let flag = |yes: bool| if yes { "True" } else { "False" };
        let text: &str = match hole {
            Hole::Name => &self.name,
            Hole::Namespace => &self.namespace,
            Hole::Uid => &self.uid,
            Hole::App => &self.app,
            Hole::Owner => &self.owner,
            Hole::OwnerKind => self.owner_kind,
            Hole::OwnerApi => {
                if self.owner_kind == "Job" {
                    "batch/v1"
                } else {
                    "apps/v1"
                }
            }
            Hole::OwnerUid => &self.owner_uid,
            Hole::Restart => {
                if self.owner_kind == "Job" {
                    "Never"
                } else {
                    "Always"
                }
            }
            Hole::Hash => &self.hash,
            Hole::Image => &self.image,
            Hole::Created => &self.created,
            Hole::Time => &self.time,
            Hole::Ready => flag(self.ready),
            Hole::ReadyBool => {
                if self.ready {
                    "true"
                } else {
                    "false"
                }
            }
            Hole::Node => return into.extend_from_slice(format!("node-{:04}", self.node).as_bytes()),
            Hole::Restarts => return into.extend_from_slice(self.restarts.to_string().as_bytes()),
            Hole::Ip => return into.extend_from_slice(address(10, self.number).as_bytes()),
            Hole::HostIp => return into.extend_from_slice(address(172, self.node).as_bytes()),
            other => return into.extend_from_slice(self.value(other, random).as_bytes()),
        };
        into.extend_from_slice(text.as_bytes());
    }

    /// A value that an application decides, or chance where objects are to be diverse.
    fn value(&self, hole: Hole, random: &mut Option<Random>) -> String {
        if let Some(random) = random {
            let len = match hole {
                Hole::Digest => return digest(random),
                Hole::Memory => return format!("{}Mi", 64 + random.below(4000)),
                Hole::Cpu => return format!("{}m", 10 + random.below(2000)),
                Hole::Tag => 5,
                Hole::Team => return format!("team-{}", random.below(40)),
                Hole::Note => 20 + random.below(120),
                _ => 8 + random.below(60),
            };
            return random.suffix(len);
        }
        let app = &self.app;
        match hole {
            Hole::Digest => digest(&mut Random::new(self.number as u64)),
            Hole::Memory => "512Mi".to_owned(),
            Hole::Cpu => "250m".to_owned(),
            Hole::Tag => "x7k2p".to_owned(),
            Hole::Team => format!("team-{}", app.len() % 7),
            Hole::Note => format!("revision of {app}, \\\"quoted\\\" once"),
            Hole::Level => "info".to_owned(),
            Hole::Database => format!("postgres://{app}@postgres.{}.svc.cluster.local:5432/{app}", self.namespace),
            Hole::Cache => format!("redis://redis.{}.svc.cluster.local:6379/0", self.namespace),
            Hole::Features => "checkout-v2,fast-search,dark-mode".to_owned(),
            _ => "--verbosity=2".to_owned(),
        }
    }
}

pub(super) fn address(first: u8, number: usize) -> String {
    format!("{first}.{}.{}.{}", (number >> 16) & 0xff, (number >> 8) & 0xff, number & 0xff)
}

fn digest(random: &mut Random) -> String {
    let mut half = || (u128::from(random.next_u64()) << 64) | u128::from(random.next_u64());
    format!("{:032x}{:032x}", half(), half())
}
