//! The webhook handler against real HTTP servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod configuration;

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::support::receiver::{Authority, Seen, Server, Signed, fine, replace};
use deltabus::internals::{
    change::{Cause, Change},
    cloud_event::{ContentMode, Encoder, Formatter},
    handler::{
        AsyncHandler, Form, HandlerError,
        webhook::{Auth, Webhook, WebhookMethod, WebhookOptions, WebhookTls},
    },
    journal::{Record, Sequence, UnitId},
    notification::{Event, Notification, UnitInfo},
    object::{Object, ResourceType},
    secret::{PlainOrSecret, SecretRef},
};
use http::{Method, Response, StatusCode, Version};
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout of a request that is answered.
const PATIENT: Duration = Duration::from_secs(30);

fn options(server: &Server) -> WebhookOptions {
    let url = PlainOrSecret::Plain(format!("http://{}/hook?key=1", server.address));
    WebhookOptions { url, ..WebhookOptions::default() }
}

fn over_tls(server: &Server, tls: WebhookTls) -> WebhookOptions {
    let url = PlainOrSecret::Plain(format!("https://localhost:{}/hook", server.address.port()));
    WebhookOptions { url, tls, ..options(server) }
}

fn encoder() -> Encoder {
    Encoder::new("prod", "9f2c")
}

fn webhook(options: WebhookOptions) -> Webhook {
    Webhook::new(options, false, PATIENT, encoder()).unwrap()
}

/// Returns a webhook whose requests have several events.
fn batched(options: WebhookOptions) -> Webhook {
    Webhook::new(options, true, PATIENT, encoder()).unwrap()
}

fn pod(name: &str, version: u64) -> Object {
    let metadata =
        json!({"namespace": "ns", "name": name, "uid": format!("u-{name}"), "resourceVersion": version.to_string()});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"note": "größer als 100%"}});
    Object::from_json(pod.to_string().as_bytes()).unwrap()
}

/// Returns updates of these pods.
fn updates(names: &[&str]) -> Notification {
    let (version, kind, plural) = ("v1".to_owned(), "Pod".to_owned(), "pods".to_owned());
    let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
    let unit = Arc::new(UnitInfo { entry: "pods".to_owned(), resource, namespace: None });
    let event = |(number, name): (u64, &&str)| {
        let change = Change::Updated { old: pod(name, 1), object: pod(name, 2), cause: Cause::Watch };
        let record = Record { sequence: Sequence(number), unit: UnitId(0), time_micros: 1, change, old_lost: false };
        Event { unit: Arc::clone(&unit), record }
    };
    Notification::new((1..).zip(names).map(event).collect())
}

fn structured(event: &Event, form: Form) -> Value {
    let body = Formatter::from(encoder()).body(event, form, ContentMode::Structured).unwrap();
    serde_json::from_slice(&body.bytes).unwrap()
}

async fn deliver(handler: &Webhook, batch: &Notification) -> Result<(), HandlerError> {
    handler.deliver(batch, Form::Whole).await
}

// ── requests ──

#[tokio::test]
async fn structured_event_is_body_with_idempotency_key() {
    let server = Server::start(None, fine).await;
    let headers = [("x-team".to_owned(), PlainOrSecret::Plain("platform".to_owned()))].into();
    let handler = webhook(WebhookOptions { method: WebhookMethod::Put, headers, ..options(&server) });
    let batch = updates(&["a"]);
    deliver(&handler, &batch).await.unwrap();
    let [seen] = &server.seen()[..] else { panic!("one request") };
    assert_eq!(
        (&seen.method, seen.uri.to_string(), seen.version),
        (&Method::PUT, "/hook?key=1".to_owned(), Version::HTTP_11)
    );
    assert_eq!(seen.json(), structured(&batch.events()[0], Form::Whole));
    for (name, value) in [
        ("content-type", "application/cloudevents+json"),
        ("idempotency-key", "u-a.2"),
        ("x-team", "platform"),
        ("user-agent", concat!("deltabus/", env!("CARGO_PKG_VERSION"))),
        ("host", &server.address.to_string()),
        ("ce-id", ""),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn binary_mode_sends_attributes_as_headers() {
    let server = Server::start(None, fine).await;
    let handler = webhook(WebhookOptions { mode: ContentMode::Binary, ..options(&server) });
    let batch = updates(&["größe \"1\" 100%"]);
    deliver(&handler, &batch).await.unwrap();
    let seen = server.seen().remove(0);
    assert_eq!(seen.header("content-type"), "application/json");
    assert_eq!(seen.header("ce-name"), "gr%C3%B6%C3%9Fe%20%221%22%20100%25");
    assert_eq!(seen.header("ce-datacontenttype"), "");
    let mut whole = json!({"data": seen.json(), "datacontenttype": "application/json"});
    for (name, value) in &seen.headers {
        if let Some(name) = name.as_str().strip_prefix("ce-") {
            let value = percent_encoding::percent_decode(value.as_bytes()).decode_utf8().unwrap();
            whole[name] = (*value).into();
        }
    }
    assert_eq!(whole, structured(&batch.events()[0], Form::Whole));
}

#[tokio::test]
async fn batch_is_one_array_with_stable_key() {
    let server = Server::start(None, fine).await;
    let handler = batched(options(&server));
    let batch = updates(&["a", "b"]);
    for part in [&batch, &batch, &batch.slice(0..1), &batch.slice(1..1)] {
        deliver(&handler, part).await.unwrap();
    }
    let seen = server.seen();
    assert_eq!(seen.len(), 3, "nothing is sent of nothing");
    let expected: Vec<Value> = batch.events().iter().map(|event| structured(event, Form::Whole)).collect();
    assert_eq!(seen[0].json(), json!(expected));
    assert_eq!(seen[2].json(), json!(expected[..1]), "one event is a batch too");
    assert!(seen.iter().all(|seen| seen.header("content-type") == "application/cloudevents-batch+json"));
    let keys: Vec<&str> = seen.iter().map(|seen| seen.header("idempotency-key")).collect();
    assert!(keys[0] == keys[1] && keys[0] != keys[2] && keys[0].len() == 64, "{keys:?}");
}

#[tokio::test]
async fn unbatched_events_stop_at_first_failure() {
    let refuse_b = |seen: &Seen| {
        let status = if seen.header("idempotency-key") == "u-b.2" { 500 } else { 204 };
        Some(Response::builder().status(status).body(String::new()).unwrap())
    };
    let server = Server::start(None, refuse_b).await;
    let handler = webhook(options(&server));
    assert!(deliver(&handler, &updates(&["a", "b", "c"])).await.is_err());
    let keys: Vec<String> = server.seen().iter().map(|seen| seen.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys, ["u-a.2", "u-b.2"]);
}

#[tokio::test]
async fn oversized_event_is_accepted_in_smaller_form() {
    let batch = updates(&["a"]);
    let sizes = [Form::Whole, Form::WithoutOld, Form::Reference]
        .map(|form| structured(&batch.events()[0], form)["data"].to_string().len());
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    for mode in [ContentMode::Structured, ContentMode::Binary] {
        let limit = move |seen: &Seen| {
            let data = if mode == ContentMode::Binary { seen.json() } else { seen.json()["data"].clone() };
            let status = if data.to_string().len() > sizes[2] { 413 } else { 200 };
            Some(Response::builder().status(status).body("at most 2 bytes".to_owned()).unwrap())
        };
        let server = Server::start(None, limit).await;
        let handler = webhook(WebhookOptions { mode, ..options(&server) });
        for form in [Form::Whole, Form::WithoutOld] {
            let place = format!("POST http://{}", server.address);
            let said = format!("{place}: answered 413 Payload Too Large: at most 2 bytes");
            assert_eq!(handler.deliver(&batch, form).await, Err(HandlerError::TooLarge(said)));
        }
        assert_eq!(handler.deliver(&batch, Form::Reference).await, Ok(()));
    }
}

// ── responses ──

#[tokio::test]
async fn each_response_class_has_its_outcome() {
    let outcome = async |status, headers: &[_], body| {
        let server = Server::answering(status, headers, body).await;
        let outcome = deliver(&webhook(options(&server)), &updates(&["a"])).await;
        (outcome, format!("POST http://{}: ", server.address))
    };
    let (taken, _) = outcome(202, &[], "thanks").await;
    assert_eq!(taken, Ok(()));
    let (failed, place) = outcome(503, &[], "").await;
    assert_eq!(failed, Err(HandlerError::Failed(format!("{place}answered 503 Service Unavailable"))));
    let (busy, place) = outcome(429, &[("retry-after", "17")], "slow down").await;
    let reason = format!("{place}answered 429 Too Many Requests: slow down");
    assert_eq!(busy, Err(HandlerError::Busy { reason, retry_after: Duration::from_secs(17) }));
    let (rejected, place) = outcome(422, &[], "\u{1b}[31mno\r\nsuch field\u{7}").await;
    let said = format!("{place}answered 422 Unprocessable Entity: [31mno such field");
    assert_eq!(rejected, Err(HandlerError::Rejected(said)));
}

#[tokio::test]
async fn retry_after_may_be_a_date() {
    let server = Server::start(None, |_| {
        let date = httpdate::fmt_http_date((jiff::Timestamp::now() + Duration::from_hours(1)).into());
        Some(Response::builder().status(503).header("retry-after", date).body(String::new()).unwrap())
    })
    .await;
    let outcome = deliver(&webhook(options(&server)), &updates(&["a"])).await;
    let Err(HandlerError::Busy { retry_after, .. }) = outcome else { panic!("{outcome:?}") };
    assert!((Duration::from_mins(55)..=Duration::from_hours(1)).contains(&retry_after), "{retry_after:?}");
}

#[tokio::test]
async fn redirect_is_reported_and_not_followed() {
    let target = Server::start(None, fine).await;
    let place = format!("http://{}/elsewhere?token=1", target.address);
    let server = Server::start(None, move |_| {
        Some(Response::builder().status(StatusCode::FOUND).header("location", &place).body(String::new()).unwrap())
    })
    .await;
    let outcome = deliver(&webhook(options(&server)), &updates(&["a"])).await;
    let expected = format!(
        "POST http://{}: answered 302 Found, a redirect to http://{}/elsewhere: redirects are not followed, set `url` to \
         the address that takes events",
        server.address, target.address
    );
    assert_eq!(outcome, Err(HandlerError::Failed(expected)));
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn hung_receiver_is_awaited_up_to_timeout() {
    let server =
        Server::start(None, |seen| (seen.header("idempotency-key") != "u-hangs.2").then(Response::default)).await;
    let handler = Webhook::new(options(&server), false, Duration::from_millis(300), encoder()).unwrap();
    let said = format!("POST http://{}: no answer within 300ms", server.address);
    assert_eq!(deliver(&handler, &updates(&["hangs"])).await, Err(HandlerError::Failed(said)));
    let patient = webhook(options(&server));
    assert_eq!(deliver(&patient, &updates(&["a"])).await, Ok(()));
}

#[tokio::test]
async fn unreachable_receiver_is_reported() {
    let closed = "127.0.0.1:1";
    let server = Server::start(None, fine).await;
    let url = PlainOrSecret::Plain(format!("http://{closed}/"));
    let outcome = deliver(&webhook(WebhookOptions { url, ..options(&server) }), &updates(&["a"])).await;
    let said = format!("POST http://{closed}: tcp connect error: Connection refused (os error 111)");
    assert_eq!(outcome, Err(HandlerError::Failed(said)));
}

/// A receiver may refuse a body before it has read it.
#[tokio::test]
async fn early_413_is_noticed_while_sending_body() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        let answer = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        // Like real servers, read and drop the body, so that a reset does not lose the answer.
        while stream.read(&mut [0; 1 << 14]).await.is_ok_and(|read| read > 0) {}
    });
    let server = Server::start(None, fine).await;
    let url = PlainOrSecret::Plain(format!("http://{address}/"));
    let handler = batched(WebhookOptions { url, ..options(&server) });
    let names = vec!["a"; 20_000];
    let outcome = deliver(&handler, &updates(&names)).await;
    assert!(matches!(outcome, Err(HandlerError::TooLarge(_))), "{outcome:?}");
}

#[tokio::test]
async fn status_counts_despite_broken_response_body() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for lingers in [true, false] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1 << 14]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nfine").await.unwrap();
            if lingers {
                std::future::pending::<()>().await;
            }
        });
        let server = Server::start(None, fine).await;
        let url = PlainOrSecret::Plain(format!("http://{address}/"));
        let handler = webhook(WebhookOptions { url, ..options(&server) });
        assert_eq!(deliver(&handler, &updates(&["a"])).await, Ok(()));
    }
}

// ── connections ──

#[tokio::test]
async fn connection_is_reused_after_successes_and_failures() {
    let alternate = |seen: &Seen| {
        let status = if seen.header("idempotency-key").contains("odd") { 500 } else { 200 };
        Some(Response::builder().status(status).body("some words".to_owned()).unwrap())
    };
    let server = Server::start(None, alternate).await;
    let handler = webhook(options(&server));
    for name in ["a", "odd", "b", "odd", "c"] {
        assert_eq!(deliver(&handler, &updates(&[name])).await.is_err(), name == "odd");
    }
    assert_eq!((server.seen().len(), server.connections()), (5, 1));
}

struct Files {
    dir: TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap(), authority: Authority::new() };
        files.authority.write(&files.path("ca.pem"));
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn trusting(&self) -> WebhookTls {
        WebhookTls { ca_file: Some(self.path("ca.pem")), ..WebhookTls::default() }
    }

    fn known(&self) -> WebhookTls {
        let (cert_file, key_file) = (Some(self.path("cert.pem")), Some(self.path("key.pem")));
        WebhookTls { cert_file, key_file, ..self.trusting() }
    }
}

#[tokio::test]
async fn tls_uses_http2_where_offered() {
    let files = Files::new();
    for (protocols, version) in
        [(&["h2", "http/1.1"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11), (&[], Version::HTTP_11)]
    {
        let server = Server::start(Some(files.authority.server("localhost", None, protocols)), fine).await;
        let handler = webhook(over_tls(&server, files.trusting()));
        let batch = updates(&["a"]);
        deliver(&handler, &batch).await.unwrap();
        if version == Version::HTTP_2 {
            let many = std::iter::repeat_n((), 8).map(|()| deliver(&handler, &batch));
            assert!(futures_util::future::join_all(many).await.iter().all(Result::is_ok));
        } else {
            deliver(&handler, &batch).await.unwrap();
        }
        assert!(server.seen().iter().all(|seen| seen.version == version), "{version:?}");
        assert_eq!(server.connections(), 1, "{version:?}");
    }
}

#[tokio::test]
async fn untrusted_server_gets_nothing() {
    let (files, others) = (Files::new(), Files::new());
    let server = Server::start(Some(files.authority.server("localhost", None, &[])), fine).await;
    let outcome = deliver(&webhook(over_tls(&server, others.trusting())), &updates(&["a"])).await;
    let Err(HandlerError::Failed(said)) = outcome else { panic!("{outcome:?}") };
    assert!(said.contains("invalid peer certificate"), "{said}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn certificate_name_may_differ_when_configured() {
    let files = Files::new();
    let server = Server::start(Some(files.authority.server("hooks.internal", None, &[])), fine).await;
    let outcome = deliver(&webhook(over_tls(&server, files.trusting())), &updates(&["a"])).await;
    let Err(HandlerError::Failed(said)) = outcome else { panic!("{outcome:?}") };
    assert!(said.contains("not valid for name \"localhost\""), "{said}");
    let tls = WebhookTls { server_name: Some("hooks.internal".to_owned()), ..files.trusting() };
    deliver(&webhook(over_tls(&server, tls)), &updates(&["a"])).await.unwrap();
    assert_eq!(server.seen()[0].header("host"), format!("localhost:{}", server.address.port()));
}

#[tokio::test]
async fn client_certificate_is_sent_and_reloaded() {
    let (files, clients) = (Files::new(), Authority::new());
    let server = Server::start(Some(files.authority.server("localhost", Some(&clients), &[])), fine).await;
    let nobody = deliver(&webhook(over_tls(&server, files.trusting())), &updates(&["a"])).await;
    assert!(matches!(nobody, Err(HandlerError::Failed(_))), "{nobody:?}");
    assert_eq!(server.seen().len(), 0);

    let write = |signed: &Signed| signed.write(&files.path("cert.pem"), &files.path("key.pem"));
    let (first, second) = (clients.sign("first", ClientAuth), clients.sign("second", ClientAuth));
    write(&first);
    let handler = webhook(over_tls(&server, files.known()));
    deliver(&handler, &updates(&["a"])).await.unwrap();
    // A half-finished change has no effect.
    replace(&files.path("key.pem"), "not yet");
    deliver(&handler, &updates(&["a"])).await.unwrap();
    write(&second);
    deliver(&handler, &updates(&["a"])).await.unwrap();
    let peers: Vec<_> = server.seen().into_iter().map(|seen| seen.peer.unwrap()).collect();
    assert_eq!(peers, [&first, &first, &second].map(|signed| signed.certificate.to_vec()));
}

// ── authentication ──

#[tokio::test]
async fn token_is_sent_reloaded_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let echo = |seen: &Seen| {
        let said = format!("who is {}?", seen.header("authorization"));
        Some(Response::builder().status(500).body(said).unwrap())
    };
    let server = Server::start(None, echo).await;
    replace(&file, "f1rst\n");
    let auth = Some(Auth::Bearer(SecretRef::File(file.clone())));
    let handler = webhook(WebhookOptions { auth, ..options(&server) });
    let error = deliver(&handler, &updates(&["a"])).await.unwrap_err().to_string();
    assert!(error.ends_with("answered 500 Internal Server Error: who is Bearer ***?"), "{error}");
    replace(&file, "sec0nd\n");
    deliver(&handler, &updates(&["a"])).await.unwrap_err();
    std::fs::remove_file(&file).unwrap();
    deliver(&handler, &updates(&["a"])).await.unwrap_err();
    let tokens: Vec<_> = server.seen().iter().map(|seen| seen.header("authorization").to_owned()).collect();
    assert_eq!(tokens, ["Bearer f1rst", "Bearer sec0nd", "Bearer sec0nd"]);
}

#[tokio::test]
async fn user_and_password_are_sent_as_basic_authentication() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    replace(&file, "open: sesame");
    let server = Server::start(None, fine).await;
    let auth = Some(Auth::Basic { username: "Aladdin".to_owned(), password: SecretRef::File(file) });
    deliver(&webhook(WebhookOptions { auth, ..options(&server) }), &updates(&["a"])).await.unwrap();
    assert_eq!(server.seen()[0].header("authorization"), "Basic QWxhZGRpbjpvcGVuOiBzZXNhbWU=");
}

/// Verifies a request like a receiver that implements the specification without our code.
fn is_signed_with(seen: &Seen, secret: &str) -> bool {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let (id, time) = (seen.header("webhook-id"), seen.header("webhook-timestamp"));
    let content = [id.as_bytes(), b".", time.as_bytes(), b".", &seen.body].concat();
    let is_recent = (jiff::Timestamp::now().as_second() - time.parse::<i64>().unwrap()).abs() < 300;
    let mut signatures =
        seen.header("webhook-signature").split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    let is_right = |signature| ring::hmac::verify(&key, &content, &STANDARD.decode(signature).unwrap()).is_ok();
    is_recent && !id.is_empty() && !id.contains('.') && signatures.any(is_right)
}

#[tokio::test]
async fn signature_is_valid_under_each_current_secret() {
    const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NEW: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let server = Server::start(None, fine).await;
    replace(&file, OLD);
    let auth = Some(Auth::Signature(SecretRef::File(file.clone())));
    let handler = batched(WebhookOptions { auth, ..options(&server) });
    for secrets in [OLD.to_owned(), format!("{OLD} {NEW}\n"), NEW.to_owned()] {
        replace(&file, &secrets);
        deliver(&handler, &updates(&["a", "b"])).await.unwrap();
    }
    let holds: Vec<_> = server.seen().iter().map(|seen| [OLD, NEW].map(|key| is_signed_with(seen, key))).collect();
    assert_eq!(holds, [[true, false], [true, true], [false, true]]);
    let mut forged = server.seen().remove(0);
    forged.body = "[]".into();
    assert!(!is_signed_with(&forged, OLD));
    let ids: Vec<_> = server.seen().iter().map(|seen| seen.header("webhook-id").to_owned()).collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "the same events have the same id: {ids:?}");
}

#[tokio::test]
async fn secret_url_and_header_are_reloaded_and_hidden() {
    let server = Server::answering(503, &[], "s3cret-path s3cret-key").await;
    let dir = tempfile::tempdir().unwrap();
    let [url_file, key_file] = ["url", "key"].map(|name| dir.path().join(name));
    std::fs::write(&url_file, format!("http://{}/s3cret-path\n", server.address)).unwrap();
    std::fs::write(&key_file, "s3cret-key").unwrap();
    let secret = |file: &std::path::Path| PlainOrSecret::Secret(SecretRef::File(file.to_owned()));
    let headers = [("x-key".to_owned(), secret(&key_file))].into();
    let handler = webhook(WebhookOptions { url: secret(&url_file), headers, ..options(&server) });
    let error = deliver(&handler, &updates(&["a"])).await.unwrap_err();
    let told = format!("{error:?}");
    assert!(told.contains("POST ***: ") && !told.contains("s3cret"), "{told}");
    assert!(!told.contains(&server.address.to_string()), "{told}");
    std::fs::write(&key_file, "s3cret-key-2").unwrap();
    deliver(&handler, &updates(&["a"])).await.unwrap_err();
    let keys: Vec<String> = server.seen().iter().map(|seen| seen.header("x-key").to_owned()).collect();
    assert_eq!(keys, ["s3cret-key", "s3cret-key-2"]);
    assert_eq!(server.seen()[0].uri.path(), "/s3cret-path");
}
