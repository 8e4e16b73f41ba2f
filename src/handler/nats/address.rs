//! Addresses of servers.

use http::Uri;

/// Port of a server without one in its address.
pub(crate) const PORT_DEFAULT: u16 = 4222;

/// Parses the address of a server, `nats://host:4222`. The scheme is `nats` if there is none. The host of an IPv6 address
/// is in brackets.
pub(crate) fn server_address(text: &str) -> Option<Uri> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
    let uri: Uri = format!("{}://{rest}", scheme.to_ascii_lowercase()).parse().ok()?;
    // `Uri` accepts any text as a port.
    let authority = uri.authority()?;
    let has_port = authority.as_str() != authority.host();
    (!has_port || authority.port_u16().is_some()).then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_default_scheme_and_valid_port() {
        for (text, expected) in [
            ("nats://a:4333", Some(("nats", "a", Some(4333)))),
            ("TLS://a", Some(("tls", "a", None))),
            ("a.b:1", Some(("nats", "a.b", Some(1)))),
            ("nats://[::1]:5", Some(("nats", "[::1]", Some(5)))),
            ("nats://a:99999", None),
            ("nats://a:b", None),
            ("nats://", None),
        ] {
            let address = server_address(text);
            let parts = |address| (Uri::scheme_str(address).unwrap(), address.host().unwrap(), address.port_u16());
            let parts = address.as_ref().map(parts);
            assert_eq!(parts, expected, "{text}");
        }
    }
}
