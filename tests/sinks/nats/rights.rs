//! Permissions of NATS users.

use super::*;

/// Returns a user with restricted permissions.
fn restricted(keys: &Keys, permissions: &str) -> String {
    format!(
        "{}authorization {{ users: [ {{ user: joe, password: x, permissions: {{ {permissions} }} }} ] }}",
        keys.jetstream()
    )
}

fn joe(server: &NatsServer) -> NatsAuth {
    fs::write(server.file("password"), "x").unwrap();
    NatsAuth::Basic { username: "joe".to_owned(), password: SecretRef::File(server.file("password")) }
}

/// Returns an event of an object in a namespace without publish permission.
fn forbidden(name: &str) -> Event {
    let metadata = serde_json::json!({"name": name, "namespace": "secret", "uid": name, "resourceVersion": "1"});
    let json = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    let object = deltabus::internals::object::Object::from_json(json.to_string().as_bytes()).unwrap();
    event(1, Change::Added { object, cause: Cause::Watch })
}

#[tokio::test]
async fn missing_subject_right_fails_only_its_event() {
    let name = "missing_subject_right_fails_only_its_event";
    let users = |keys: &Keys| restricted(keys, "publish: { deny: [\"k8s.*.core.configmaps.secret.>\"] }");
    let Some(server) = NatsServer::start_or_skip(name, users) else { return };
    let auth = Some(joe(&server));
    for jetstream in [Some(stream()), None] {
        let handler = handler(NatsOptions { auth: auth.clone(), jetstream, ..server.options() });
        // The user may lack all permissions, and an administrator may be about to grant them.
        let error = sentence(deliver(&handler, &[forbidden("n")]).await);
        assert!(error.starts_with("NATS refused: ") && error.contains("configmaps.secret.n"), "{error}");
        let many: Vec<_> = (0..300).map(|i| forbidden(&format!("n{i}"))).chain([added("a", 1)]).collect();
        let few = |version| vec![forbidden("n"), updated("a", version)];
        for events in [many, few(2), few(3), vec![forbidden("n")]] {
            match deliver(&handler, &events).await {
                Err(HandlerError::Rejected(error)) => assert!(error.contains("configmaps.secret.n"), "{error}"),
                other => panic!("{other:?}"),
            }
        }
        // A refusal does not abort other deliveries in progress.
        let (refused, fine) = ([forbidden("n")], [updated("a", 4)]);
        let (refused, fine) = tokio::join!(deliver(&handler, &refused), deliver(&handler, &fine));
        assert!(matches!(refused, Err(HandlerError::Rejected(_))), "{refused:?}");
        fine.unwrap();
    }
    let client = server.client_as(async_nats::ConnectOptions::with_user_and_password("joe".into(), "x".into())).await;
    assert_eq!(ids(&stored(&client, "K8S").await), ["uid-a.1", "uid-a.2", "uid-a.3", "uid-a.4"]);
}

#[tokio::test]
async fn missing_essential_right_is_awaited() {
    let name = "missing_essential_right_is_awaited";
    let users = |keys: &Keys| restricted(keys, "publish: { deny: [\"$JS.API.STREAM.INFO.>\"] }");
    let Some(server) = NatsServer::start_or_skip(name, users) else { return };
    let handler = handler(NatsOptions { auth: Some(joe(&server)), ..server.options() });
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    assert!(error.starts_with("NATS refused: ") && error.contains("$JS.API.STREAM.INFO.K8S"), "{error}");
}

/// The documented permissions are enough, and no others are used.
#[tokio::test]
async fn documented_rights_are_sufficient_and_minimal() {
    let name = "documented_rights_are_sufficient_and_minimal";
    let users = |keys: &Keys| {
        let rights = ["k8s.>", "$JS.API.STREAM.INFO.K8S", "$JS.API.STREAM.CREATE.K8S", "$JS.API.STREAM.MSG.GET.K8S"]
            .into_iter()
            .chain(["$JS.API.CONSUMER.CREATE.K8S", "$JS.API.CONSUMER.MSG.NEXT.K8S.>", "$JS.API.CONSUMER.DELETE.K8S.>"]);
        let rights: Vec<_> = rights.map(|right| format!("{right:?}")).collect();
        restricted(
            keys,
            &format!("publish: {{ allow: [{}] }}, subscribe: {{ allow: \"_INBOX.>\" }}", rights.join(", ")),
        )
    };
    let Some(server) = NatsServer::start_or_skip(name, users) else { return };
    let auth = Some(joe(&server));
    let jetstream = Some(JetStreamOptions { expect_last: ExpectLast::PerSubject, ..stream() });
    for _ in 0..2 {
        let handler = handler(NatsOptions { auth: auth.clone(), jetstream: jetstream.clone(), ..server.options() });
        deliver(&handler, &[added("a", 1), updated("a", 2), updated("a", 3)]).await.unwrap();
    }
    let plain = handler(NatsOptions { auth, jetstream: None, ..server.options() });
    deliver(&plain, &[added("b", 1)]).await.unwrap();
}
