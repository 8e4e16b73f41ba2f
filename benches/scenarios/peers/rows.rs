//! Peers and their setups.

use super::go::GoPeers;
use crate::harness::{Outcome, Player};

/// A measured client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Deltabus,
    ClientGoDynamic,
    ClientGoJson,
    ClientGoProtobuf,
    ControllerRuntime,
    KubeTyped,
    KubeDynamic,
}

/// All peers, in the order of the tables.
pub(super) const PEERS: [Peer; 7] = [
    Peer::Deltabus,
    Peer::ClientGoDynamic,
    Peer::ClientGoJson,
    Peer::ClientGoProtobuf,
    Peer::ControllerRuntime,
    Peer::KubeTyped,
    Peer::KubeDynamic,
];

impl Peer {
    /// Returns its name in the programs and in `--only`.
    pub(super) fn id(self) -> &'static str {
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

    pub(super) fn title(self) -> &'static str {
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

    /// Starts the peer in a separate process.
    pub(super) fn start(self, go: &GoPeers, args: &[String]) -> Outcome<Player> {
        match self {
            Self::Deltabus | Self::KubeTyped | Self::KubeDynamic => Player::start(self.id(), args),
            _ => Player::spawn(go.command("observe").arg(self.id()).args(args)),
        }
    }
}

/// Setup of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Variant {
    /// `metadata.managedFields` stay in the cache: the default of all peers except deltabus.
    Kept,
    /// `metadata.managedFields` are removed before the cache: the default of deltabus, a transform or `modify` of the others.
    Stripped,
    /// The peer's default, and over TLS.
    Tls,
}

/// A peer in one setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row(pub(super) Peer, pub(super) Variant);

/// Returns all rows, in the order of a round.
pub(super) fn all() -> Vec<Row> {
    let variants = [Variant::Kept, Variant::Stripped, Variant::Tls];
    variants.iter().flat_map(|variant| PEERS.map(|peer| Row(peer, *variant))).collect()
}

impl Row {
    pub(super) fn peer(self) -> Peer {
        self.0
    }

    /// Returns true for a reflector of kube-rs.
    pub(super) fn is_kube_rs(self) -> bool {
        matches!(self.0, Peer::KubeTyped | Peer::KubeDynamic)
    }

    /// Returns the name that `--only` searches.
    pub(super) fn name(self) -> String {
        let variant = match self.1 {
            Variant::Kept => "kept",
            Variant::Stripped => "stripped",
            Variant::Tls => "tls",
        };
        format!("{}/{variant}", self.0.id())
    }

    /// Returns true if `metadata.managedFields` are removed.
    pub(super) fn strips(self) -> bool {
        match self.1 {
            Variant::Kept => false,
            Variant::Stripped => true,
            Variant::Tls => self.0 == Peer::Deltabus,
        }
    }

    pub(super) fn is_secured(self) -> bool {
        self.1 == Variant::Tls
    }
}
