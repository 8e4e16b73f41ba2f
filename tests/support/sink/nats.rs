//! A stream of a real NATS server, behind a gate.

use async_nats::jetstream::{self, stream::DiscardPolicy};
use serde_json::Value;

use super::{Manner, Sink};
use crate::support::{
    gate::{Door, Gate},
    nats::{Keys, NatsServer, stored},
};

/// The stream that a NATS handler creates and writes to.
pub(crate) struct Nats {
    server: NatsServer,
    gate: Gate,
    is_full: bool,
}

impl Nats {
    /// Starts the server, or prints the reason for skipping.
    pub(crate) fn start_or_skip(name: &str) -> Option<Self> {
        let server = NatsServer::start_or_skip(name, Keys::jetstream)?;
        let gate = Gate::before(server.address().parse().expect("an address"));
        Some(Self { server, gate, is_full: false })
    }

    fn ask<T>(&self, work: impl AsyncFnOnce(async_nats::Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(async { work(self.server.client().await).await })
    }

    /// Limits the stream to its current messages, or lifts the limit.
    fn set_full(&mut self, is_full: bool) {
        if self.is_full == is_full {
            return;
        }
        self.is_full = is_full;
        self.ask(async |client| {
            let context = jetstream::new(client);
            let mut stream = context.get_stream("K8S").await.expect("there is the stream");
            let info = stream.info().await.expect("there is the stream");
            let (mut config, messages) = (info.config.clone(), info.state.messages);
            config.discard = DiscardPolicy::New;
            config.max_messages = if is_full { messages.max(1).cast_signed() } else { -1 };
            context.update_stream(config).await.expect("it may be changed");
        });
    }
}

impl Sink for Nats {
    fn handler(&self) -> String {
        format!(
            "type = \"nats\"\nservers = [\"nats://{}\"]\nmode = \"structured\"\ntimeout = \"5s\"\n\
             jetstream = {{ stream = \"K8S\" }}",
            self.gate.address
        )
    }

    fn be(&mut self, manner: Manner) {
        self.set_full(manner == Manner::Refuses);
        self.gate.set(Door::of(manner));
    }

    fn arrived(&self) -> Vec<Value> {
        let messages = self.ask(async |client| {
            // the handler creates the stream before its first message
            let is_there = jetstream::new(client.clone()).get_stream("K8S").await.is_ok();
            if is_there { stored(&client, "K8S").await } else { Vec::new() }
        });
        messages.iter().map(|message| serde_json::from_slice(&message.payload).expect("it is JSON")).collect()
    }

    /// The stream drops repetitions by their ids.
    fn shows_repetitions(&self) -> bool {
        false
    }

    fn stores_once(&self) -> bool {
        true
    }
}
