//! Addresses of servers.

use std::str::FromStr;

use http::Uri;

/// Port of a server without one in its address.
const PORT_DEFAULT: u16 = 4222;

/// Error for a text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidAddress;

/// Address of a server, `nats://host:4222`. The scheme is `nats` if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress(Uri);

impl FromStr for ServerAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
        let uri: Uri = format!("{}://{rest}", scheme.to_ascii_lowercase()).parse().map_err(|_| InvalidAddress)?;
        // `Uri` accepts any text as a port.
        let authority = uri.authority().ok_or(InvalidAddress)?;
        let has_port = authority.as_str() != authority.host();
        if has_port && authority.port_u16().is_none() { Err(InvalidAddress) } else { Ok(Self(uri)) }
    }
}

impl ServerAddress {
    /// Returns the scheme.
    pub(crate) fn scheme(&self) -> &str {
        self.0.scheme_str().unwrap_or_default()
    }

    /// Returns the host; an IPv6 address is in brackets.
    pub(crate) fn host(&self) -> &str {
        self.0.host().unwrap_or_default()
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        self.0.port_u16().unwrap_or(PORT_DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_default_scheme_and_port() {
        for (text, expected) in [
            ("nats://a:4333", Some(("nats", "a", 4333))),
            ("TLS://a", Some(("tls", "a", 4222))),
            ("a.b:1", Some(("nats", "a.b", 1))),
            ("nats://[::1]:5", Some(("nats", "[::1]", 5))),
            ("nats://a:99999", None),
            ("nats://a:b", None),
            ("nats://", None),
        ] {
            let address = text.parse::<ServerAddress>().ok();
            let parts = address.as_ref().map(|address| (address.scheme(), address.host(), address.port()));
            assert_eq!(parts, expected, "{text}");
        }
    }
}
