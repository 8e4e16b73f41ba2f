//! Reader of the schemas of a server. It requests the document of a group and version when one of its types is asked for.

use http::{Request, header};
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, client::Body};
use serde::de::DeserializeOwned;

use super::{
    ask::{ANSWER_TIMEOUT, DiscoveryError},
    openapi::{DocumentIndex, Schemas},
};
use crate::object::ResourceType;

/// Path of the index of the documents.
const INDEX: &str = "/openapi/v3";
/// Maximum size of one document. The largest of Kubernetes 1.36 has 1.4 MB; one of custom resources may be larger.
const DOCUMENT_BYTES_MAX: usize = 24 << 20;

/// Reader of the schemas of a server.
pub(crate) struct SchemaReader<'a> {
    client: &'a Client,
    index: DocumentIndex,
    /// Address and content of the last document; `None` for one that could not be read. Documents are large, so only one is kept.
    last: Option<(String, Option<Schemas>)>,
    /// First failure to read a document.
    failure: Option<DiscoveryError>,
}

impl<'a> SchemaReader<'a> {
    /// Requests the index of the documents.
    ///
    /// # Errors
    /// Fails if the server has no index, as before Kubernetes 1.24, or if the request fails.
    pub(crate) async fn open(client: &'a Client) -> Result<Self, DiscoveryError> {
        let index = read(client, INDEX).await?;
        Ok(Self { client, index, last: None, failure: None })
    }

    /// Returns the schemas of the type's group and version. `None` if the server has none, or if they could not be read.
    pub(crate) async fn of(&mut self, resource: &ResourceType) -> Option<&Schemas> {
        let address = self.index.address(resource)?;
        if self.last.as_ref().is_none_or(|(last, _)| last != address) {
            let schemas = match read(self.client, address).await {
                Ok(schemas) => Some(schemas),
                Err(error) => {
                    self.failure.get_or_insert(error);
                    None
                }
            };
            self.last = Some((address.to_owned(), schemas));
        }
        self.last.as_ref()?.1.as_ref()
    }

    /// Returns the first failure to read a document.
    pub(crate) fn failure(&self) -> Option<&DiscoveryError> {
        self.failure.as_ref()
    }
}

/// Requests a JSON document of bounded size.
async fn read<T: DeserializeOwned>(client: &Client, address: &str) -> Result<T, DiscoveryError> {
    let path = address.split('?').next().unwrap_or_default();
    let failed = |code, why: String| DiscoveryError { code, said: format!("failed to get {path}: {why}") };
    let request = Request::get(address).header(header::ACCEPT, "application/json").body(Body::empty());
    let request = request.map_err(|error| failed(None, error.to_string()))?;
    let answer = async {
        let answer = client.send(request).await.map_err(|error| DiscoveryError::of_client(path, &error))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(failed(Some(status.as_u16()), format!("HTTP {status}")));
        }
        let body = Limited::new(answer.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        Ok(body.map_err(|error| failed(None, error.to_string()))?.to_bytes())
    };
    let late = |_| failed(None, format!("no answer within {}s", ANSWER_TIMEOUT.as_secs()));
    let body = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(late)??;
    serde_json::from_slice(&body).map_err(|error| failed(None, format!("unexpected answer: {error}")))
}
