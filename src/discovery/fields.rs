//! Field selectors that the server refuses.

use std::time::Duration;

use form_urlencoded::Serializer;
use http::{Request, header::ACCEPT};
use kube::Client;
use tokio::time::timeout;

use super::ask::METADATA_LIST;
use crate::object::ResourceType;

/// Longest wait for the answer to a list of one object.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// Asks whether a type can be selected by these fields; returns the server's reason where it cannot. A list that fails for
/// another reason is no answer. One request, for the metadata of one object.
pub async fn refused_fields(
    client: &Client,
    resource: &ResourceType,
    namespace: Option<&str>,
    fields: &str,
) -> Option<String> {
    let query = Serializer::new(String::new()).append_pair("limit", "1").append_pair("fieldSelector", fields).finish();
    let request = Request::get(format!("{}?{query}", resource.path(namespace))).header(ACCEPT, METADATA_LIST);
    let request = request.body(Vec::new()).ok()?;
    match timeout(ANSWER_TIMEOUT, client.request_text(request)).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 400 => Some(status.message.clone()),
        _ => None,
    }
}
