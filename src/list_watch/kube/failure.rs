//! Classification of transport errors by the reflector's next step.

use std::io;

use hyper_util::client::legacy;

use crate::{
    client_error::{causes, describe},
    list_watch::Failure,
};

/// Classifies an error of the client (R-40, T-3).
///
/// - [`Failure::Refused`]: no process accepts connections at the address.
/// - [`Failure::Disconnected`]: the connection was lost, or the network is down.
/// - [`Failure::Undecodable`]: the peer does not speak HTTP.
/// - [`Failure::Request`]: TLS, credentials or name resolution failed. A repeat after a second would not help.
pub(super) fn sort(error: &kube::Error) -> Failure {
    let said = describe(error);
    let kinds: Vec<io::ErrorKind> =
        causes(error).filter_map(|e| e.downcast_ref::<io::Error>()).map(io::Error::kind).collect();
    if kinds.contains(&io::ErrorKind::ConnectionRefused) {
        return Failure::Refused;
    }
    if kinds.iter().any(|kind| is_lost(*kind)) {
        return Failure::Disconnected(said);
    }
    let is_parse = |e: &hyper::Error| e.is_parse() || e.is_parse_too_large() || e.is_parse_status();
    for cause in causes(error) {
        if let Some(error) = cause.downcast_ref::<hyper::Error>() {
            return if is_parse(error) { Failure::Undecodable(said) } else { Failure::Disconnected(said) };
        }
        if cause.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect) {
            return Failure::Request(said);
        }
    }
    Failure::Request(said)
}

fn is_lost(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::BrokenPipe
            | Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::NetworkDown
            | Kind::NetworkUnreachable
            | Kind::NotConnected
            | Kind::TimedOut
            | Kind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(kind: io::ErrorKind) -> kube::Error {
        kube::Error::Service(Box::new(io::Error::other(io::Error::new(kind, "inside"))))
    }

    /// Rules: T-3, R-40.
    #[test]
    fn failures_are_classified_by_innermost_cause() {
        assert_eq!(sort(&wrapped(io::ErrorKind::ConnectionRefused)), Failure::Refused);
        for lost in [
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::TimedOut,
            io::ErrorKind::BrokenPipe,
        ] {
            assert_eq!(sort(&wrapped(lost)), Failure::Disconnected("inside".into()), "{lost}");
        }
        for odd in [io::ErrorKind::InvalidData, io::ErrorKind::Other, io::ErrorKind::PermissionDenied] {
            assert_eq!(sort(&wrapped(odd)), Failure::Request("inside".into()), "{odd}");
        }
    }
}
