//! Behaviour that all handlers share, whatever their destination: one list of cases, one row per handler.
//!
//! `cargo test --test sinks contract::webhook` runs the cases with one handler. Another kind of handler needs an `impl` of
//! [`sink::Sink`] and a row below.

mod bench;
mod blackhole;
mod cases;

use crate::support::simulated::Simulated;
use crate::support::sink;
use bench::Bench;

/// Names of the cases: functions of [`cases`].
macro_rules! contract {
    ($($handler:ident: $sink:expr;)*) => {
        $(contract!(@row $handler, $sink,
            events_of_each_object_arrive_in_order,
            refused_events_are_retried_until_accepted,
            repeated_event_keeps_its_id,
            stop_during_batch_loses_nothing,
            stop_during_deliveries_repeats_nothing,
            unreachable_sink_at_start_is_awaited,
            sink_gets_everything_after_outage,
            stalled_sink_uses_disk_and_delays_none,
            kill_during_deliveries_loses_nothing,
        );)*
    };
    (@row $handler:ident, $sink:expr, $($case:ident,)*) => {
        mod $handler {
            use super::{Bench, Simulated, sink};

            $(#[test]
            fn $case() {
                let name = concat!(stringify!($handler), "::", stringify!($case));
                let cluster = Simulated::start();
                let make: fn(&std::path::Path, &str) -> Option<Box<dyn sink::Sink>> = $sink;
                let Some(sink) = make(cluster.dir(), name) else { return };
                super::cases::$case(Bench::new(cluster, sink));
            })*
        }
    };
}

contract! {
    file: |dir, _| Some(Box::new(sink::file::File::new(dir)));
    stdout: |dir, _| Some(Box::new(sink::file::Stdout::new(dir)));
    webhook: |_, _| Some(Box::new(sink::webhook::Hook::start()));
    nats: |_, name| Some(Box::new(sink::nats::Nats::start_or_skip(name)?));
    exec: |dir, _| Some(Box::new(sink::exec::Script::new(dir)));
    file_of_differences: |dir, _| Some(Box::new(sink::Formatted("diff", sink::file::File::new(dir))));
    webhook_of_merge_patches: |_, _| Some(Box::new(sink::Formatted("merge_patch", sink::webhook::Hook::start())));
    nats_of_patches: |_, name| Some(Box::new(sink::Formatted("patch", sink::nats::Nats::start_or_skip(name)?)));
}

#[cfg(feature = "kafka")]
contract! {
    kafka: |_, name| Some(Box::new(sink::kafka::Kafka::start_or_skip(name)?));
}
