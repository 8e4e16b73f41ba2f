//! What every handler does alike, whatever it delivers to: one list of cases, one row a handler.
//!
//! `cargo test --test sinks contract::webhook` plays them with one of them. A further kind of handler is an `impl` of
//! [`sink::Sink`] and a row below.

mod bench;
mod blackhole;
mod cases;

use crate::support::simulated::Simulated;
use crate::support::sink;
use bench::Bench;

/// The names of the cases: functions of [`cases`].
macro_rules! contract {
    ($($handler:ident: $sink:expr;)*) => {
        $(contract!(@row $handler, $sink,
            i2_each_object_tells_its_story_in_order,
            i4_what_the_sink_refuses_is_tried_again_until_it_is_taken,
            d8_what_comes_twice_has_the_id_that_it_had,
            i4_a_stop_in_mid_batch,
            i4_a_stop_amid_deliveries_repeats_nothing,
            i4_a_sink_that_is_down_at_the_start_is_waited_for,
            i4_a_sink_that_goes_and_comes_back_gets_everything,
            i5_i7_a_stuck_sink_costs_disk_and_delays_nobody,
            i4_killed_amid_deliveries_and_started_again_it_loses_nothing,
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
