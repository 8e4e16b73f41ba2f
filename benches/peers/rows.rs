//! Who is measured, and how each is set up.

use std::error::Error;

use crate::{go::GoPeers, support::process::Player};

/// One that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Deltabus,
    ClientGoDynamic,
    ClientGoJson,
    ClientGoProtobuf,
    ControllerRuntime,
    KubeTyped,
    KubeDynamic,
}

/// All of them, in the order of the tables.
pub(crate) const PEERS: [Peer; 7] = [
    Peer::Deltabus,
    Peer::ClientGoDynamic,
    Peer::ClientGoJson,
    Peer::ClientGoProtobuf,
    Peer::ControllerRuntime,
    Peer::KubeTyped,
    Peer::KubeDynamic,
];

impl Peer {
    /// Returns what the programs and `--only` call it.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Deltabus => "deltabus",
            Self::ClientGoDynamic => "client-go-dynamic",
            Self::ClientGoJson => "client-go-json",
            Self::ClientGoProtobuf => "client-go-protobuf",
            Self::ControllerRuntime => "controller-runtime",
            Self::KubeTyped => "kube-typed",
            Self::KubeDynamic => "kube-dynamic",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Deltabus => "deltabus",
            Self::ClientGoDynamic => "client-go, dynamic informer",
            Self::ClientGoJson => "client-go, typed, JSON",
            Self::ClientGoProtobuf => "client-go, typed, protobuf",
            Self::ControllerRuntime => "controller-runtime cache",
            Self::KubeTyped => "kube-rs reflector, typed",
            Self::KubeDynamic => "kube-rs reflector, dynamic",
        }
    }

    /// Starts it as a process of its own.
    pub(crate) fn start(self, go: &GoPeers, args: &[String]) -> Result<Player, Box<dyn Error>> {
        match self {
            Self::Deltabus | Self::KubeTyped | Self::KubeDynamic => Player::start(self.id(), args),
            _ => Player::spawn(go.command("observe").arg(self.id()).args(args)),
        }
    }
}

/// How a peer is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    /// `metadata.managedFields` stay in the cache: the default of all but deltabus.
    Kept,
    /// They are cut out before the cache: the default of deltabus, a transform or `modify` of the others.
    Stripped,
    /// By default, and over TLS.
    Tls,
}

/// What is measured in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row(pub(crate) Peer, pub(crate) Variant);

/// Returns all rows, in the order of a round.
pub(crate) fn all() -> Vec<Row> {
    let variants = [Variant::Kept, Variant::Stripped, Variant::Tls];
    variants.iter().flat_map(|variant| PEERS.map(|peer| Row(peer, *variant))).collect()
}

impl Row {
    pub(crate) fn peer(self) -> Peer {
        self.0
    }

    /// Returns what `--only` looks into.
    pub(crate) fn name(self) -> String {
        let variant = match self.1 {
            Variant::Kept => "kept",
            Variant::Stripped => "stripped",
            Variant::Tls => "tls",
        };
        format!("{}/{variant}", self.0.id())
    }

    /// Returns whether `metadata.managedFields` are cut out.
    pub(crate) fn strips(self) -> bool {
        match self.1 {
            Variant::Kept => false,
            Variant::Stripped => true,
            Variant::Tls => self.0 == Peer::Deltabus,
        }
    }

    pub(crate) fn is_secured(self) -> bool {
        self.1 == Variant::Tls
    }
}
