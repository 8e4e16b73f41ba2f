//! Addresses of servers.

use std::str::FromStr;

use http::Uri;

/// Port of a server without one in its address.
const PORT_DEFAULT: u16 = 4222;

/// Address of a server, `nats://host:4222`. The scheme is `nats` if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress(Uri);

impl FromStr for ServerAddress {
    type Err = http::Error;

    fn from_str(text: &str) -> Result<Self, http::Error> {
        let uri: Uri = if text.contains("://") { text.parse()? } else { format!("nats://{text}").parse()? };
        Ok(Self(uri))
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
