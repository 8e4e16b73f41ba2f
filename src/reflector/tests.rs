//! Tests of the rules R-1 … R-64 and D-1 … D-6, and of the protection of a saved cache, one by one.
//! `model_tests.rs` tests them together.

use super::*;
use crate::{
    list_watch::{PassedOver, SkipReason, Status},
    testing::{expired, object, status, too_large},
};

/// A reflector with its own clock; jitter is 0 unless set otherwise.
struct Bench {
    reflector: Reflector,
    now: Duration,
    jitter: f64,
    /// Simulated result of comparing a list.
    comparison: Comparison,
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn paged() -> ReflectorConfig {
    ReflectorConfig { streaming_lists: StreamingLists::Never, ..ReflectorConfig::default() }
}

fn list(version: &str, limit: Option<u32>) -> ReflectorAction {
    ReflectorAction::List(ListRequest { resource_version: version.into(), limit, continue_token: None })
}

fn watch(version: &str) -> ReflectorAction {
    ReflectorAction::OpenWatch(WatchRequest {
        resource_version: version.into(),
        initial_events: false,
        timeout_seconds: 300,
    })
}

fn streaming(version: &str) -> ReflectorAction {
    ReflectorAction::OpenWatch(WatchRequest {
        resource_version: version.into(),
        initial_events: true,
        timeout_seconds: 300,
    })
}

fn added(name: &str, version: &str) -> WatchEvent {
    WatchEvent::Added(object(name, version))
}

fn modified(name: &str, version: &str) -> WatchEvent {
    WatchEvent::Modified(object(name, version))
}

fn deleted(name: &str, version: &str) -> WatchEvent {
    WatchEvent::Deleted(object(name, version))
}

fn bookmark(version: &str) -> WatchEvent {
    WatchEvent::Bookmark { resource_version: version.into(), initial_events_end: false }
}

fn marker(version: &str) -> WatchEvent {
    WatchEvent::Bookmark { resource_version: version.into(), initial_events_end: true }
}

fn error(failure: &Failure) -> WatchEvent {
    WatchEvent::Error(failure.status().expect("a status").clone())
}

fn lost() -> Failure {
    Failure::Disconnected("reset".into())
}

fn foreign(version: &str) -> WatchEvent {
    WatchEvent::PassedOver { object: object("f", version).unread(), why: PassedOver::Foreign }
}

fn untransformed(version: &str) -> WatchEvent {
    WatchEvent::PassedOver { object: object("t", version).unread(), why: PassedOver::TransformFailed("why".into()) }
}

fn too_deep(name: &str, version: &str) -> WatchEvent {
    WatchEvent::PassedOver { object: object(name, version).unread(), why: PassedOver::TooDeep }
}

/// Writes events as `+a1 ~a2 -a3 =[a1 b2]@7 @9 resync`.
fn text(events: &[ReflectorEvent]) -> String {
    let name = |object: &Object| format!("{}{}", object.name(), object.resource_version());
    let one = |event: &ReflectorEvent| match event {
        ReflectorEvent::Added(object) => format!("+{}", name(object)),
        ReflectorEvent::Updated(object) => format!("~{}", name(object)),
        ReflectorEvent::Deleted(object) => format!("-{}", name(object)),
        ReflectorEvent::Replace { items, spared, resource_version } => {
            let names = |objects: &[Object]| objects.iter().map(name).collect::<Vec<_>>().join(" ");
            let spared = if spared.is_empty() { String::new() } else { format!(" spares {}", names(spared)) };
            format!("=[{}]@{resource_version}{spared}", names(items))
        }
        ReflectorEvent::Bookmark(version) => format!("@{version}"),
        ReflectorEvent::Resync { round } => format!("resync{round}"),
    };
    events.iter().map(one).collect::<Vec<_>>().join(" ")
}

impl Bench {
    fn new(config: ReflectorConfig) -> Self {
        Self {
            reflector: Reflector::new(config, ReflectorStart::Fresh(ResourceVersion::unset())),
            now: Duration::ZERO,
            jitter: 0.0,
            comparison: Comparison::default(),
        }
    }

    /// Returns a bench with an open watch, after a list of `a1` at version 10.
    fn watching(config: ReflectorConfig) -> Self {
        let mut bench = Self::new(config);
        bench.feed(ReflectorInput::Start);
        bench.page("10", &[("a", "1")]);
        assert!(matches!(bench.reflector.state, State::Watching(_)));
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench
    }

    /// Returns a bench with a saved cache at `version`.
    fn saved(config: ReflectorConfig, version: &str) -> Self {
        Self { reflector: Reflector::new(config, ReflectorStart::Saved(version.into())), ..Self::new(config) }
    }

    /// Returns a bench at the relist of a thousand cached objects at version 10. The lists lack most of them.
    fn doubting(config: ReflectorConfig) -> Self {
        let mut bench = Self::watching(config);
        bench.comparison = Comparison { known: 1_000, missing: 812 };
        bench.receive(vec![error(&expired())]);
        assert_eq!(bench.after(0.8).feed(ReflectorInput::Timer).action, list("10", None));
        bench
    }

    /// Returns a bench with an open streaming list.
    fn streaming(config: ReflectorConfig) -> Self {
        let mut bench = Self::new(config);
        assert_eq!(bench.feed(ReflectorInput::Start).action, streaming(""));
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench
    }

    /// Takes one step; if it compares a list, also the next one.
    fn feed(&mut self, input: ReflectorInput) -> ReflectorStep {
        let known = self.reflector.last.clone();
        let first = self.step(input);
        if first.action != ReflectorAction::Compare {
            return first;
        }
        assert!(first.events.is_empty() && self.reflector.last == known && first.holds_list_permit);
        let mut second = self.step(ReflectorInput::Compared(self.comparison));
        second.reports.splice(0..0, first.reports);
        second
    }

    fn step(&mut self, input: ReflectorInput) -> ReflectorStep {
        self.reflector.step(input, self.now, self.jitter)
    }

    fn after(&mut self, passed: f64) -> &mut Self {
        self.now += seconds(passed);
        self
    }

    fn page(&mut self, version: &str, items: &[(&str, &str)]) -> ReflectorStep {
        let items = items.iter().map(|(name, version)| object(name, version)).collect();
        self.feed(ReflectorInput::Page(Ok(ListPage { resource_version: version.into(), items, ..ListPage::default() })))
    }

    fn fail_list(&mut self, failure: Failure) -> ReflectorStep {
        self.feed(ReflectorInput::Page(Err(failure)))
    }

    fn refuse(&mut self, failure: Failure) -> ReflectorStep {
        self.feed(ReflectorInput::Opened(Err(failure)))
    }

    fn receive(&mut self, batch: Vec<WatchEvent>) -> ReflectorStep {
        self.feed(ReflectorInput::Received(batch))
    }

    fn end(&mut self) -> ReflectorStep {
        self.feed(ReflectorInput::Ended(Ok(())))
    }

    /// Asserts a wait of `delay`, then advances the clock by it.
    #[track_caller]
    fn waits(&mut self, step: &ReflectorStep, delay: f64) -> ReflectorStep {
        assert_eq!(step.action, ReflectorAction::Wait { until: self.now + seconds(delay) });
        assert!(!step.holds_list_permit, "nobody holds a permit while he waits");
        self.after(delay).feed(ReflectorInput::Timer)
    }
}

/// Rules.
#[test]
fn first_cycle_lists_any_version_at_once() {
    assert_eq!(Bench::new(paged()).feed(ReflectorInput::Start).action, list("0", Some(500)));
}

/// Rules.
#[test]
fn complete_list_is_one_replace_then_watch() {
    let mut bench = Bench::new(paged());
    assert!(bench.feed(ReflectorInput::Start).holds_list_permit);
    assert!(!bench.reflector.has_listed);
    let step = bench.page("10", &[("a", "1"), ("b", "2")]);
    assert_eq!(text(&step.events), "=[a1 b2]@10");
    assert_eq!((step.action, step.holds_list_permit), (watch("10"), false));
    assert!(bench.reflector.has_listed);
    assert_eq!(bench.reflector.availability, Availability::Unknown);
    bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(bench.reflector.availability, Availability::Available);
}

/// Rules: P-1, R-20.
#[test]
fn page_size_depends_on_configuration_and_state() {
    for (page_size, first, relist) in [(None, Some(500), None), (Some(7), Some(7), Some(7)), (Some(0), None, None)] {
        let mut bench = Bench::new(ReflectorConfig { page_size, ..paged() });
        assert_eq!(bench.feed(ReflectorInput::Start).action, list("0", first), "{page_size:?}");
        bench.page("10", &[]);
        let step = bench.refuse(status(500));
        assert_eq!(bench.waits(&step, 0.8).action, list("10", relist), "{page_size:?}");
    }
}

/// Rule: R-21.
#[test]
fn paginated_answer_to_version_zero_forces_pages() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    let page = ListPage { resource_version: "10".into(), continue_token: Some("t".into()), ..ListPage::default() };
    bench.feed(ReflectorInput::Page(Ok(page)));
    bench.page("10", &[]);
    let step = bench.refuse(status(500));
    assert_eq!(bench.waits(&step, 0.8).action, list("10", Some(500)));
}

/// Rule: R-22.
#[test]
fn refused_version_is_retried_once_without_version() {
    for failure in [expired(), too_large()] {
        let mut bench = Bench::watching(paged());
        let step = bench.receive(vec![error(&expired())]);
        assert_eq!(bench.waits(&step, 0.8).action, list("10", None));
        let step = bench.fail_list(failure.clone());
        assert_eq!(step.action, list("", None), "same limit decision");
        assert!(matches!(step.reports[..], [ReflectorReport::VersionRefused { .. }]), "not yet a failed cycle");
        let step = bench.fail_list(failure.clone());
        assert_eq!(step.reports, [ReflectorReport::ListFailed(failure.clone())]);
        assert_eq!(bench.waits(&step, 1.6).action, list("", Some(500)));
        bench.page("20", &[]);
        let step = bench.refuse(status(500));
        assert_eq!(bench.waits(&step, 3.2).action, list("20", None), "the flag is cleared");
    }
}

/// Rules, S-13.
#[test]
fn failed_list_is_reported_and_retried_with_backoff() {
    for (failure, availability) in [
        (status(403), Availability::Forbidden(Verb::List)),
        (status(401), Availability::Unauthorized),
        (status(404), Availability::Missing),
        (status(500), Availability::Unknown),
        (status(429), Availability::Unknown),
        (Failure::Refused, Availability::Unknown),
        (lost(), Availability::Unknown),
        (Failure::NotAList("Table".into()), Availability::Unknown),
    ] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        for delay in [0.8, 1.6, 3.2] {
            let step = bench.fail_list(failure.clone());
            assert_eq!(step.reports, [ReflectorReport::ListFailed(failure.clone())]);
            assert!(step.events.is_empty(), "R-25: a failed list removes nothing");
            assert_eq!(bench.waits(&step, delay).action, list("0", Some(500)), "{failure:?}");
            assert_eq!(bench.reflector.availability, availability);
            assert_eq!(bench.reflector.last_error.as_ref(), Some(&failure));
        }
    }
}

/// Rule: T-1.
#[test]
fn server_delay_extends_wait_up_to_limit() {
    for (asked, waited) in [(0, 0.8), (5, 5.0), (86_400, 120.0)] {
        let patience = Status { code: 503, retry_after: Some(Duration::from_secs(asked)), ..Status::default() };
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        let step = bench.fail_list(Failure::Status(patience));
        bench.waits(&step, waited);
    }
}

/// Rule: P-5.
#[test]
fn partially_failed_list_delivers_nothing() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    let items = vec![object("a", "1")];
    let page = ListPage { resource_version: "9".into(), continue_token: Some("t".into()), items, rejected: 0 };
    let step = bench.feed(ReflectorInput::Page(Ok(page)));
    assert!(step.events.is_empty() && step.holds_list_permit);
    let step = bench.fail_list(status(500));
    assert!(step.events.is_empty());
    assert!(bench.reflector.last.is_unset());
}

/// Rules: F-31, K-4.
#[test]
fn duplicates_and_rejected_items_are_counted() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    let items = vec![object("a", "1"), object("a", "2")];
    let step = bench.feed(ReflectorInput::Page(Ok(ListPage { items, rejected: 3, ..ListPage::default() })));
    assert_eq!(text(&step.events), "=[a2]@");
    assert_eq!(step.reports, [ReflectorReport::Duplicates { count: 1 }, ReflectorReport::Rejected { count: 3 }]);
    assert_eq!(bench.reflector.counters.skipped, 3);
}

/// Rules: R-26, D-5.
#[test]
fn older_list_is_refused_once_then_believed() {
    let mut bench = Bench::watching(paged());
    bench.receive(vec![modified("a", "15")]);
    let step = bench.receive(vec![error(&expired())]);
    assert_eq!(bench.waits(&step, 0.8).action, list("15", None));
    let step = bench.page("9", &[]);
    assert_eq!((text(&step.events), step.action), (String::new(), list("", None)));
    assert!(matches!(step.reports[..], [ReflectorReport::OlderListRefused { .. }]));
    let step = bench.page("14", &[("b", "14")]);
    assert_eq!((text(&step.events).as_str(), step.action), ("=[b14]@14", watch("14")));
    assert!(matches!(step.reports[..], [ReflectorReport::ServerWentBack { .. }]));
}

/// Rules.
#[test]
fn streaming_list_continues_as_watch() {
    let mut bench = Bench::new(ReflectorConfig::default());
    let step = bench.feed(ReflectorInput::Start);
    assert_eq!((step.action, step.holds_list_permit), (streaming(""), true));
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.receive(vec![added("a", "1"), added("b", "2")]);
    assert!(step.events.is_empty() && step.holds_list_permit, "R-31");
    assert!(bench.reflector.last.is_unset());
    let step = bench.receive(vec![deleted("a", "3"), modified("b", "4"), marker("5"), added("c", "6"), bookmark("7")]);
    assert_eq!(text(&step.events), "=[b4]@5 +c6 @7");
    assert!(matches!(step.action, ReflectorAction::Read { .. }) && !step.holds_list_permit);
    assert_eq!(bench.reflector.last.as_str(), "7");
    assert!(matches!(bench.reflector.state, State::Watching(_)));
    assert_eq!(bench.after(2.0).end().action, watch("7"));
}

/// Rule: R-32.
#[test]
fn bookmark_without_version_marks_nothing() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    let step = bench.receive(vec![added("a", "1"), bookmark("5"), marker(""), marker("0")]);
    assert!(step.events.is_empty());
    assert!(matches!(bench.reflector.state, State::Streaming(_)));
}

/// Rule: R-34.
#[test]
fn refused_streaming_list_waits_and_streams_again() {
    for failure in [Failure::Refused, status(429)] {
        let mut bench = Bench::new(ReflectorConfig::default());
        bench.feed(ReflectorInput::Start);
        let step = bench.refuse(failure);
        assert_eq!(bench.waits(&step, 0.8).action, streaming(""));
    }
    let mut bench = Bench::streaming(ReflectorConfig::default());
    let step = bench.receive(vec![added("a", "1"), error(&status(429))]);
    assert_eq!(bench.waits(&step, 0.8).action, streaming(""));
}

/// Rule: R-34.
#[test]
fn refused_version_streams_again_without_version() {
    for failure in [expired(), too_large()] {
        let mut bench = Bench::streaming(ReflectorConfig::default());
        bench.receive(vec![marker("5")]);
        let step = bench.after(2.0).receive(vec![error(&expired())]);
        assert_eq!(bench.waits(&step, 0.8).action, streaming("5"));
        assert_eq!(bench.refuse(failure.clone()).action, streaming(""));
        assert_eq!(bench.refuse(failure).action, list("", Some(500)), "nothing is left to leave out");
    }
}

/// Rule: R-34.
#[test]
fn other_streaming_failures_fall_back_to_list() {
    for (failure, remembered) in [
        (status(400), true),
        (status(422), true),
        (status(403), false),
        (status(404), false),
        (status(500), false),
        (Failure::Undecodable("x".into()), false),
        (Failure::FrameTooLong { max_bytes: 9, object: None }, false),
    ] {
        let mut bench = Bench::new(ReflectorConfig::default());
        bench.feed(ReflectorInput::Start);
        let step = bench.refuse(failure.clone());
        assert_eq!(step.action, list("0", Some(500)), "{failure:?}");
        assert!(
            matches!(step.reports[..], [ReflectorReport::GaveUpStreaming { retry_at, .. }] if retry_at.is_some() == remembered)
        );
        bench.page("10", &[]);
        let step = bench.refuse(status(500));
        let next = if remembered { list("10", None) } else { streaming("10") };
        assert_eq!(bench.waits(&step, 0.8).action, next, "{failure:?}");
    }
}

/// Rule: R-35.
#[test]
fn short_stream_without_marker_gives_up_streaming() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    let step = bench.after(0.5).end();
    assert_eq!(step.reports, [ReflectorReport::GaveUpStreaming { cause: GiveUpCause::Short, retry_at: None }]);
    assert_eq!(step.action, list("0", Some(500)));
}

/// Rules: R-35, D-2.
#[test]
fn three_unmarked_streams_disable_streaming_for_a_while() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    for _ in 0..2 {
        bench.receive(vec![added("a", "1")]);
        assert_eq!(bench.after(2.0).end().action, streaming(""));
        bench.feed(ReflectorInput::Opened(Ok(())));
    }
    let step = bench.after(2.0).feed(ReflectorInput::Ended(Err(lost())));
    assert_eq!(step.action, list("0", Some(500)));
    let cause = GiveUpCause::Unmarked { streams: 3 };
    assert_eq!(step.reports, [ReflectorReport::GaveUpStreaming { cause, retry_at: Some(bench.now + seconds(1800.0)) }]);
    bench.page("10", &[]);
    let step = bench.refuse(status(500));
    assert_eq!(bench.waits(&step, 0.8).action, list("10", None));
    bench.page("10", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.after(1800.0).receive(vec![error(&status(500))]);
    assert_eq!(bench.waits(&step, 0.8).action, streaming("10"));
}

/// Rule: D-1.
#[test]
fn short_unmarked_stream_waits_before_retry() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.receive(vec![added("a", "1")]);
    let step = bench.after(0.5).end();
    assert_eq!(bench.waits(&step, 0.8).action, streaming(""));
}

/// Rule: D-2.
#[test]
fn only_synthetic_events_extend_marker_deadline() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.after(50.0).receive(vec![added("a", "1")]);
    bench.after(50.0).receive(vec![modified("a", "2"), bookmark("3")]);
    assert!(matches!(bench.reflector.state, State::Streaming(_)));
    let step = bench.after(10.0).feed(ReflectorInput::Timer);
    assert_eq!(step.action, list("0", Some(500)));
    assert!(matches!(
        &step.reports[..],
        [ReflectorReport::GaveUpStreaming { cause: GiveUpCause::Deadline, retry_at: Some(_) }]
    ));
}

/// Rule: D-2.
#[test]
fn endless_synthetic_events_end_with_stream_lifetime() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    for _ in 0..7 {
        let step = bench.after(44.0).receive(vec![added("a", "1")]);
        assert!(matches!(step.action, ReflectorAction::Read { .. }));
    }
    assert_eq!(bench.after(7.0).receive(vec![added("a", "1")]).action, list("0", Some(500)), "300 s + 15 s");
}

/// Rule: R-36.
#[test]
fn late_marker_is_reported_every_ten_seconds() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    assert_eq!(
        bench.after(10.0).feed(ReflectorInput::Timer).reports,
        [ReflectorReport::MarkerLate { waiting: seconds(10.0), silent: None }]
    );
    assert!(bench.after(4.0).receive(vec![added("a", "1")]).reports.is_empty());
    let step = bench.after(6.0).feed(ReflectorInput::Timer);
    assert_eq!(step.reports, [ReflectorReport::MarkerLate { waiting: seconds(20.0), silent: Some(seconds(6.0)) }]);
    assert_eq!(step.action, ReflectorAction::Read { until: bench.now + seconds(10.0) });
}

/// Rule: LW-4.
#[test]
fn streaming_always_never_lists() {
    let config = ReflectorConfig { streaming_lists: StreamingLists::Always, ..ReflectorConfig::default() };
    let mut bench = Bench::new(config);
    bench.feed(ReflectorInput::Start);
    let step = bench.refuse(status(400));
    assert_eq!(bench.waits(&step, 0.8).action, streaming(""));
    let step = bench.refuse(status(404));
    assert_eq!(bench.waits(&step, 1.6).action, streaming(""));
}

/// Rule: D-5.
#[test]
fn older_marker_is_refused_once() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.receive(vec![marker("15")]);
    let step = bench.after(2.0).receive(vec![error(&status(500))]);
    assert_eq!(bench.waits(&step, 0.8).action, streaming("15"));
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.receive(vec![added("a", "9"), marker("9"), deleted("a", "10")]);
    assert_eq!((text(&step.events), step.action), (String::new(), streaming("")));
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.receive(vec![marker("9")]);
    assert_eq!(bench.reflector.counters.streaming_lists, 3);
    assert_eq!(text(&step.events), "=[]@9");
    assert!(matches!(step.reports[..], [ReflectorReport::ServerWentBack { .. }]));
}

/// Rule: R-40.
#[test]
fn refused_watch_waits_and_reopens_without_list() {
    for failure in [Failure::Refused, status(429)] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        bench.page("10", &[]);
        for delay in [0.8, 1.6] {
            let step = bench.refuse(failure.clone());
            assert_eq!(step.reports, [ReflectorReport::WatchDelayed(failure.clone())]);
            assert_eq!(bench.waits(&step, delay).action, watch("10"));
        }
    }
}

/// Rule: R-40.
#[test]
fn other_opening_error_ends_cycle_and_is_reported() {
    for failure in [status(403), status(404), status(503), expired()] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        bench.page("10", &[]);
        let step = bench.refuse(failure.clone());
        assert_eq!(step.reports, [ReflectorReport::WatchStartFailed(failure)]);
        assert_eq!(bench.waits(&step, 0.8).action, list("10", None));
    }
}

/// Rule: T-3.
#[test]
fn connection_lost_while_opening_never_causes_relist() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    bench.page("10", &[]);
    assert_eq!(bench.after(10.0).refuse(lost()).action, watch("10"), "the transport has taken its time");
    let step = bench.refuse(lost());
    assert_eq!(bench.waits(&step, 0.8).action, watch("10"), "D-1");
}

/// Rule: R-42.
#[test]
fn watch_timeout_is_jittered_up_to_twice() {
    for (watch_timeout, jitter, expected) in [
        (300, 0.0, 300),
        (300, 0.5, 450),
        (300, 0.999, 599),
        (600, 0.5, 900),
        (0, 0.9, 1),
        (u64::MAX, 0.5, 3_221_225_470),
    ] {
        let mut bench = Bench::new(ReflectorConfig { watch_timeout: Duration::from_secs(watch_timeout), ..paged() });
        bench.jitter = jitter;
        bench.feed(ReflectorInput::Start);
        let ReflectorAction::OpenWatch(request) = bench.page("10", &[]).action else { panic!("expected a watch") };
        assert_eq!(request.timeout_seconds, expected);
    }
}

/// Rule: R-43.
#[test]
fn normal_end_resumes_from_last_version() {
    for end in [Ok(()), Err(lost()), Err(Failure::Refused)] {
        let mut bench = Bench::watching(paged());
        bench.receive(vec![added("b", "11")]);
        let step = bench.after(1.0).feed(ReflectorInput::Ended(end));
        assert_eq!(step.action, watch("11"));
        assert_eq!(step.reports, [ReflectorReport::WatchEnded { cause: EndCause::Closed, relist: false }]);
    }
}

/// Rule: D-1.
#[test]
fn stream_ended_within_a_second_resumes_after_wait() {
    let mut bench = Bench::watching(paged());
    for delay in [0.8, 1.6, 3.2] {
        bench.receive(vec![bookmark("11")]);
        let step = bench.after(0.9).end();
        assert_eq!(bench.waits(&step, delay).action, watch("11"));
        bench.feed(ReflectorInput::Opened(Ok(())));
    }
}

/// Rule: R-44.
#[test]
fn very_short_watch_backs_off_and_relists() {
    let mut bench = Bench::watching(paged());
    let skipped = WatchEvent::Skipped(SkipReason::Nameless);
    bench.receive(vec![skipped]);
    let step = bench.after(0.9).end();
    assert_eq!(step.reports, [ReflectorReport::WatchEnded { cause: EndCause::Short, relist: true }]);
    assert_eq!(bench.waits(&step, 0.8).action, list("10", None), "R-50: skipped does not count");
}

/// Rule: R-44.
#[test]
fn marker_or_hidden_object_counts_as_event() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.receive(vec![marker("5")]);
    let step = bench.after(0.5).end();
    assert_eq!(bench.waits(&step, 0.8).action, watch("5"));
    let mut bench = Bench::watching(paged());
    bench.receive(vec![foreign("12")]);
    let step = bench.after(0.5).end();
    assert_eq!(bench.waits(&step, 0.8).action, watch("12"));
}

/// Rule: R-45.
#[test]
fn stream_error_decides_between_relist_and_resume() {
    for (failure, next) in [
        (expired(), list("11", None)),
        (status(429), watch("11")),
        (status(500), list("11", None)),
        (status(403), list("11", None)),
    ] {
        let mut bench = Bench::watching(paged());
        let step = bench.after(5.0).receive(vec![added("b", "11"), error(&failure), added("never", "12")]);
        assert_eq!(text(&step.events), "+b11", "what came before the error counts");
        assert_eq!(bench.waits(&step, 0.8).action, next, "{failure:?}");
        let step = bench.feed(ReflectorInput::Ended(Err(failure)));
        assert_eq!(step.action, ReflectorAction::Keep, "a late end of the closed stream");
    }
}

/// Rule: R-45.
#[test]
fn internal_error_within_budget_resumes_watch() {
    let budget = ReflectorConfig { internal_error_retry: seconds(10.0), ..paged() };
    let mut bench = Bench::watching(budget);
    for (passed, next) in [(5.0, Some(watch("10"))), (9.0, Some(watch("10"))), (2.0, None)] {
        let step = bench.after(passed).receive(vec![error(&status(500))]);
        match next {
            Some(next) => assert_eq!(step.action, next),
            None => assert!(matches!(step.reports[..], [ReflectorReport::WatchEnded { relist: true, .. }])),
        }
        bench.feed(ReflectorInput::Opened(Ok(())));
    }
    let mut bench = Bench::watching(budget);
    bench.after(5.0).receive(vec![error(&status(500))]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(bench.after(60.0).receive(vec![error(&status(500))]).action, watch("10"), "a new budget after a minute");
}

/// Rule: R-45.
#[test]
fn nearby_internal_errors_share_one_budget() {
    let mut bench = Bench::watching(ReflectorConfig { internal_error_retry: seconds(100.0), ..paged() });
    for passed in [5.0, 40.0, 40.0] {
        assert_eq!(bench.after(passed).receive(vec![error(&status(500))]).action, watch("10"));
        bench.feed(ReflectorInput::Opened(Ok(())));
    }
    let step = bench.after(40.0).receive(vec![error(&status(500))]);
    assert!(
        matches!(step.reports[..], [ReflectorReport::WatchEnded { relist: true, .. }]),
        "the last was 40 s ago, the first 120 s"
    );
}

/// Rule: R-45.
#[test]
fn internal_error_is_recognized_by_code_or_reason() {
    for (code, reason, next) in [(500, "", true), (520, "InternalError", true), (520, "", false)] {
        let mut bench = Bench::watching(ReflectorConfig { internal_error_retry: seconds(10.0), ..paged() });
        let failure = Failure::Status(Status { code, reason: reason.into(), ..Status::default() });
        let step = bench.after(5.0).receive(vec![error(&failure)]);
        assert_eq!(step.action == watch("10"), next, "{code} {reason}");
    }
}

/// Rules: R-45, D-1.
#[test]
fn early_internal_errors_back_off() {
    let mut bench = Bench::watching(ReflectorConfig { internal_error_retry: seconds(10.0), ..paged() });
    let step = bench.after(0.1).receive(vec![error(&status(500))]);
    assert_eq!(bench.waits(&step, 0.8).action, watch("10"));
}

/// Rules.
#[test]
fn skipped_documents_are_counted_and_move_nothing() {
    let mut bench = Bench::watching(paged());
    let wrong = SkipReason::WrongType { found: "v1 Secret".into() };
    let step = bench.receive(vec![
        WatchEvent::Skipped(wrong.clone()),
        added("b", "11"),
        WatchEvent::Skipped(SkipReason::Nameless),
    ]);
    assert_eq!((text(&step.events).as_str(), bench.reflector.last.as_str()), ("+b11", "11"));
    assert_eq!(step.reports, [ReflectorReport::Skipped { count: 2, first: wrong }]);
    assert_eq!(bench.reflector.counters.skipped, 2);
}

/// Rule: R-56.
#[test]
fn unread_objects_are_named_counted_and_stay_listed() {
    let named = |first: &str, count| ReflectorReport::Unread { count, first: first.into() };
    let mut bench = Bench::watching(paged());
    let step = bench.receive(vec![too_deep("b", "11"), too_deep("c", "12")]);
    assert_eq!((text(&step.events).as_str(), bench.reflector.last.as_str()), ("@11 @12", "12"));
    assert_eq!((step.reports, bench.reflector.counters.skipped), (vec![named("default/b", 2)], 2));

    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    let items = vec![object("a", "3"), object("b", "4").unread()];
    let page = ListPage { items, resource_version: "9".into(), ..ListPage::default() };
    let step = bench.feed(ReflectorInput::Page(Ok(page)));
    assert_eq!((step.reports, bench.reflector.counters.skipped), (vec![named("default/b", 1)], 1));
    assert_eq!(text(&step.events), "=[a3 b4]@9");

    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.receive(vec![added("a", "3"), too_deep("b", "4"), untransformed("5"), foreign("6"), too_deep("d", "7")]);
    let step = bench.receive(vec![deleted("d", "8"), marker("9")]);
    assert_eq!(text(&step.events), "=[a3 b4 t5]@9", "nothing that exists is deleted");
}

/// Rules.
#[test]
fn events_move_version_verbatim_and_keep_order() {
    let mut bench = Bench::watching(paged());
    let step = bench.receive(vec![added("b", "11"), modified("a", "12"), deleted("b", "13"), bookmark("15")]);
    assert_eq!((text(&step.events).as_str(), bench.reflector.last.as_str()), ("+b11 ~a12 -b13 @15", "15"));
    bench.receive(vec![modified("a", "odd"), modified("a", "14")]);
    assert_eq!(bench.reflector.last.as_str(), "14", "lower, and taken");
    bench.receive(vec![modified("a", "")]);
    assert_eq!(bench.reflector.last.as_str(), "14", "an object without a version moves nothing");
}

/// Rules: A-5, D-5.
#[test]
fn bookmark_never_lowers_version() {
    let mut bench = Bench::watching(paged());
    let step = bench.receive(vec![added("b", "20"), bookmark("19"), bookmark(""), bookmark("0"), bookmark("20")]);
    assert_eq!((text(&step.events).as_str(), bench.reflector.last.as_str()), ("+b20 @20", "20"));
}

/// Rule: R-51.
#[test]
fn hidden_event_moves_version_like_any_other() {
    let mut bench = Bench::watching(paged());
    let step =
        bench.receive(vec![modified("a", "11"), foreign("12"), foreign("13"), modified("a", "14"), foreign("15")]);
    assert_eq!(text(&step.events), "~a11 @12 @13 ~a14 @15");
    assert_eq!(bench.reflector.last.as_str(), "15");
    let step = bench.receive(vec![foreign("")]);
    assert_eq!((text(&step.events).as_str(), bench.reflector.last.as_str()), ("", "15"), "without a version");
    assert!(!bench.reflector.bookmarks_seen, "it says nothing of bookmarks (D-6)");
    let step = bench.end();
    bench.waits(&step, 0.8);
}

/// Rule: F-61.
#[test]
fn failed_transforms_are_reported_once_per_step() {
    let mut bench = Bench::watching(paged());
    let step = bench.receive(vec![untransformed("12"), untransformed("13")]);
    assert_eq!(text(&step.events), "@12 @13");
    assert_eq!(step.reports, [ReflectorReport::TransformFailed { count: 2, first: "why".into() }]);
    assert_eq!(bench.reflector.counters.transform_failures, 2);
}

/// Rule: D-2.
#[test]
fn foreign_objects_keep_streaming_list_alive() {
    let mut bench = Bench::streaming(ReflectorConfig::default());
    bench.after(50.0).receive(vec![foreign("900")]);
    bench.after(50.0).receive(vec![added("a", "5")]);
    assert!(matches!(bench.reflector.state, State::Streaming(_)), "the marker's deadline counts from the last object");
    let step = bench.receive(vec![foreign("901"), marker("20")]);
    assert_eq!(text(&step.events), "=[a5]@20");
}

/// Rule: R-53.
#[test]
fn foreign_event_of_versionless_watch_moves_nothing() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    bench.page("", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(text(&bench.receive(vec![foreign("7")]).events), "");
    assert!(bench.reflector.last.is_unset());
}

/// Rule: S-11.
#[test]
fn resync_rounds_continue_those_of_previous_reflector() {
    let config = ReflectorConfig { resync_period: seconds(30.0), ..paged() };
    let mut bench = Bench::new(config);
    bench.reflector = Reflector::new(config, ReflectorStart::Resume("10".into()));
    bench.reflector.round = 41;
    bench.feed(ReflectorInput::Start);
    bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(text(&bench.after(30.0).feed(ReflectorInput::Timer).events), "resync42");
}

#[test]
fn refused_watch_names_forbidden_verb() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    bench.page("10", &[]);
    bench.refuse(status(403));
    assert_eq!(bench.reflector.availability, Availability::Forbidden(Verb::Watch));
    assert_eq!([Verb::List.as_ref(), Verb::Watch.as_ref()], ["list", "watch"]);
}

/// Rule: R-53.
#[test]
fn synthetic_events_of_versionless_watch_move_nothing() {
    for end in [modified("a", "12"), deleted("a", "12"), bookmark("12")] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        assert_eq!(bench.page("", &[]).action, watch(""));
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench.receive(vec![added("a", "9"), added("b", "7")]);
        assert!(bench.reflector.last.is_unset());
        bench.receive(vec![end, added("c", "13")]);
        assert_eq!(bench.reflector.last.as_str(), "13");
    }
}

/// Rules.
#[test]
fn versionless_watch_of_additions_reopens_unchanged() {
    for version in ["", "0"] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        assert_eq!(bench.page(version, &[]).action, watch(version));
        for batch in [vec![], vec![added("a", "9"), added("b", "7")], vec![added("a", "9"), foreign("8")]] {
            bench.feed(ReflectorInput::Opened(Ok(())));
            let count = batch.len();
            bench.receive(batch);
            assert_eq!(bench.reflector.last.as_str(), version);
            let step = bench.after(100.0).end();
            assert_eq!(step.action, watch(version), "after {count} events");
            assert_eq!(step.reports, [ReflectorReport::WatchEnded { cause: EndCause::Closed, relist: false }]);
        }
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench.receive(vec![added("a", "9")]);
        let step = bench.after(0.5).end();
        assert_eq!(bench.waits(&step, 0.8).action, watch(version), "D-1");
        assert_eq!(bench.after(10.0).refuse(lost()).action, watch(version), "T-3");
        bench.feed(ReflectorInput::Opened(Ok(())));
        let step = bench.after(5.0).receive(vec![added("a", "9"), error(&status(429))]);
        assert_eq!(bench.waits(&step, 1.6).action, watch(version), "R-45");
        bench.feed(ReflectorInput::Opened(Ok(())));
        assert_eq!(bench.after(315.0).feed(ReflectorInput::Timer).action, watch(version), "D-6");
        assert_eq!((bench.reflector.counters.lists, bench.reflector.counters.checks), (1, 0));
    }
}

/// Rule: R-41.
#[test]
fn versionless_change_is_followed_by_list() {
    for change in [modified("a", ""), deleted("a", ""), bookmark("0")] {
        let mut bench = Bench::new(paged());
        bench.feed(ReflectorInput::Start);
        bench.page("", &[]);
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench.receive(vec![added("a", "9"), change]);
        let step = bench.after(60.0).end();
        assert_eq!(bench.waits(&step, 0.8).action, list("0", Some(500)));
    }
}

/// Rule: R-44.
#[test]
fn very_short_versionless_watch_is_followed_by_list() {
    let mut bench = Bench::new(paged());
    bench.feed(ReflectorInput::Start);
    bench.page("", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.after(0.5).end();
    assert_eq!(bench.waits(&step, 0.8).action, list("0", Some(500)));
}

/// Rule: R-54.
#[test]
fn undecodable_or_oversized_document_ends_cycle() {
    let mut bench = Bench::watching(paged());
    let step = bench.after(5.0).receive(vec![added("b", "11"), WatchEvent::Undecodable("{".into()), added("c", "12")]);
    assert_eq!(text(&step.events), "+b11");
    assert_eq!(bench.waits(&step, 0.8).action, list("11", None));
    bench.page("11", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.after(5.0).feed(ReflectorInput::Ended(Err(Failure::FrameTooLong { max_bytes: 16, object: None })));
    assert_eq!(bench.waits(&step, 1.6).action, list("11", None));
    assert_eq!(bench.reflector.counters.unreadable, 2);
}

/// Rule: D-6.
#[test]
fn stream_past_its_timeout_is_closed_and_resumed() {
    let mut bench = Bench::watching(paged());
    assert_eq!(bench.receive(vec![added("b", "11")]).action, ReflectorAction::Read { until: seconds(315.0) });
    bench.after(314.0);
    assert_eq!(bench.feed(ReflectorInput::Timer).action, ReflectorAction::Read { until: seconds(315.0) });
    let step = bench.after(1.0).feed(ReflectorInput::Timer);
    assert_eq!(step.action, watch("11"));
    let silent = seconds(315.0);
    assert_eq!(step.reports, [ReflectorReport::WatchEnded { cause: EndCause::Stalled { silent }, relist: false }]);
    assert_eq!(bench.reflector.counters.stalls, 1);
}

/// Rule: D-6.
#[test]
fn three_silent_minutes_after_bookmark_are_a_stall() {
    let mut bench = Bench::watching(paged());
    assert_eq!(bench.after(60.0).receive(vec![bookmark("11")]).action, ReflectorAction::Read { until: seconds(240.0) });
    assert_eq!(
        bench.after(100.0).receive(vec![added("b", "12")]).action,
        ReflectorAction::Read { until: seconds(315.0) }
    );
    assert_eq!(bench.after(155.0).feed(ReflectorInput::Timer).action, watch("12"));
    bench.feed(ReflectorInput::Opened(Ok(())));
    bench.after(180.0).feed(ReflectorInput::Timer);
    assert_eq!(bench.reflector.counters.stalls, 2, "also on a stream that never spoke");
}

/// Rule: D-6.
#[test]
fn skipped_documents_are_no_sign_of_life() {
    let mut bench = Bench::watching(paged());
    bench.receive(vec![bookmark("11")]);
    let step = bench.after(100.0).receive(vec![WatchEvent::Skipped(SkipReason::Nameless)]);
    assert_eq!(step.action, ReflectorAction::Read { until: seconds(180.0) });
}

/// Rule: D-6.
#[test]
fn zero_stall_after_disables_stall_detection() {
    let mut bench = Bench::watching(ReflectorConfig { stall_after: Duration::ZERO, ..paged() });
    assert_eq!(bench.receive(vec![bookmark("11")]).action, ReflectorAction::Read { until: seconds(315.0) });
}

/// Rule: R-60.
#[test]
fn resync_ticks_only_during_watch() {
    let mut bench = Bench::watching(ReflectorConfig { resync_period: seconds(30.0), ..paged() });
    let step = bench.after(30.0).feed(ReflectorInput::Timer);
    assert_eq!((text(&step.events).as_str(), step.action), ("resync1", ReflectorAction::Read { until: seconds(60.0) }));
    let step = bench.after(31.0).receive(vec![added("b", "11")]);
    assert_eq!(text(&step.events), "+b11 resync2", "also when events leave the timer no time");
    let step = bench.receive(vec![error(&expired())]);
    let step = bench.waits(&step, 0.8);
    assert_eq!(step.action, list("11", None), "R-61: no request because of a resync");
    let step = bench.after(100.0).page("20", &[]);
    assert_eq!(text(&step.events), "=[]@20", "no tick outside the watch phase");
    let opened = bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(opened.action, ReflectorAction::Read { until: bench.now + seconds(30.0) });
}

/// Rule: R-60.
#[test]
fn wait_before_reopening_does_not_delay_resync() {
    let mut bench = Bench::watching(ReflectorConfig { resync_period: seconds(30.0), ..paged() });
    let step = bench.after(10.0).receive(vec![error(&status(429))]);
    assert_eq!(bench.waits(&step, 0.8).action, watch("10"));
    assert_eq!(bench.feed(ReflectorInput::Opened(Ok(()))).action, ReflectorAction::Read { until: seconds(30.0) });
}

#[test]
fn resume_watches_from_store_version_or_lists() {
    let mut bench = Bench::new(ReflectorConfig::default());
    bench.reflector = Reflector::new(paged(), ReflectorStart::Resume("77".into()));
    assert!(bench.reflector.has_listed);
    let step = bench.feed(ReflectorInput::Start);
    assert_eq!((step.action, step.holds_list_permit), (watch("77"), false));
    let step = bench.refuse(expired());
    assert_eq!(bench.waits(&step, 0.8).action, list("77", None));
    for unusable in ["", "0"] {
        bench.reflector = Reflector::new(paged(), ReflectorStart::Resume(unusable.into()));
        assert_eq!(bench.feed(ReflectorInput::Start).action, list("0", Some(500)));
    }
}

/// Rules.
#[test]
fn stop_ends_every_state_for_good() {
    let states: [fn() -> Bench; 9] = [
        || {
            let mut bench = Bench::saved(paged(), "10");
            bench.feed(ReflectorInput::Start);
            bench
        },
        || {
            let mut bench = Bench::new(paged());
            bench.feed(ReflectorInput::Start);
            bench.step(ReflectorInput::Page(Ok(ListPage::default())));
            bench
        },
        || {
            let mut bench = Bench::doubting(paged());
            bench.page("20", &[]);
            bench
        },
        || Bench::new(paged()),
        || {
            let mut bench = Bench::new(paged());
            bench.feed(ReflectorInput::Start);
            bench
        },
        || Bench::streaming(ReflectorConfig::default()),
        || Bench::watching(paged()),
        || {
            let mut bench = Bench::watching(paged());
            bench.end();
            bench
        },
        || {
            let mut bench = Bench::new(paged());
            bench.feed(ReflectorInput::Stop);
            bench
        },
    ];
    for state in states {
        let mut bench = state();
        let step = bench.feed(ReflectorInput::Stop);
        assert!(step.events.is_empty() && !step.holds_list_permit);
        assert_eq!(step.action, ReflectorAction::Done);
        assert!(matches!(bench.reflector.state, State::Stopped));
        for input in all_inputs() {
            let step = bench.after(100.0).feed(input);
            assert!(step.events.is_empty());
            assert_eq!(step.action, ReflectorAction::Done, "R-64");
        }
    }
}

#[test]
fn counters_add_up_over_cycles() {
    let mut bench = Bench::watching(paged());
    bench.receive(vec![bookmark("11")]);
    for version in ["12", "13"] {
        bench.after(2.0).end();
        bench.feed(ReflectorInput::Opened(Ok(())));
        bench.receive(vec![bookmark(version)]);
    }
    for _ in 0..2 {
        bench.receive(vec![error(&expired())]);
        bench.after(60.0).feed(ReflectorInput::Timer);
        bench.fail_list(too_large());
        bench.fail_list(lost());
        bench.after(60.0).feed(ReflectorInput::Timer);
        bench.page("20", &[]);
        bench.feed(ReflectorInput::Opened(Ok(())));
    }
    let counters = bench.reflector.counters;
    assert_eq!((counters.watches, counters.lists), (5, 7));
}

fn all_inputs() -> Vec<ReflectorInput> {
    vec![
        ReflectorInput::Start,
        ReflectorInput::Page(Ok(ListPage::default())),
        ReflectorInput::Compared(Comparison::default()),
        ReflectorInput::Opened(Ok(())),
        ReflectorInput::Received(vec![added("x", "99")]),
        ReflectorInput::Ended(Ok(())),
        ReflectorInput::Timer,
    ]
}

#[test]
fn unexpected_input_changes_nothing() {
    let fits = |state: &str, input: &ReflectorInput| match input {
        ReflectorInput::Start => state == "idle",
        ReflectorInput::Page(_) => ["checking", "listing"].contains(&state),
        ReflectorInput::Compared(_) => state == "comparing",
        ReflectorInput::Opened(_) => state == "opening",
        ReflectorInput::Received(_) | ReflectorInput::Ended(_) => ["streaming", "watching"].contains(&state),
        ReflectorInput::Timer => ["waiting", "streaming", "watching"].contains(&state),
        ReflectorInput::Stop => true,
    };
    for state in ["idle", "checking", "listing", "comparing", "opening", "streaming", "watching", "waiting"] {
        for input in all_inputs().into_iter().filter(|input| !fits(state, input)) {
            let mut bench = match state {
                "idle" => Bench::new(paged()),
                "streaming" => Bench::streaming(ReflectorConfig::default()),
                "listing" => {
                    let mut bench = Bench::new(paged());
                    bench.feed(ReflectorInput::Start);
                    bench
                }
                "checking" => {
                    let mut bench = Bench::saved(paged(), "10");
                    bench.feed(ReflectorInput::Start);
                    bench
                }
                "comparing" => {
                    let mut bench = Bench::new(paged());
                    bench.feed(ReflectorInput::Start);
                    bench.step(ReflectorInput::Page(Ok(ListPage::default())));
                    bench
                }
                _ => Bench::watching(paged()),
            };
            match state {
                "waiting" => drop(bench.end()),
                "opening" => drop(bench.after(1.0).end()),
                _ => {}
            }
            let before = format!("{:?}", bench.reflector);
            let step = bench.feed(input);
            assert_eq!(step.action, ReflectorAction::Keep, "{state}");
            assert!(step.events.is_empty());
            assert_eq!(format!("{:?}", bench.reflector), before);
        }
    }
}

#[test]
fn early_timer_waits_for_the_rest() {
    let mut bench = Bench::watching(paged());
    let wait = bench.end().action;
    assert_eq!(bench.after(0.1).feed(ReflectorInput::Timer).action, wait);
}

/// Rule: D-3.
#[test]
fn persistent_failures_keep_delay_until_health() {
    let mut bench = Bench::watching(paged());
    let step = bench.receive(vec![error(&status(500))]);
    bench.waits(&step, 0.8);
    bench.page("20", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.after(119.0).receive(vec![error(&status(500))]);
    bench.waits(&step, 1.6);
    bench.page("20", &[]);
    bench.feed(ReflectorInput::Opened(Ok(())));
    let step = bench.after(120.0).receive(vec![error(&status(500))]);
    bench.waits(&step, 0.8);
}

#[test]
fn list_lacking_most_objects_is_doubtful() {
    for (known, missing, doubtful) in
        [(0, 0, false), (99, 99, false), (100, 50, false), (100, 51, true), (101, 51, true), (1_000, 500, false)]
    {
        assert_eq!(Comparison { known, missing }.is_doubtful(), doubtful, "{missing} of {known}");
    }
}

/// Rule: D-15.
#[test]
fn doubtful_list_deletes_only_doubly_missing_objects() {
    let mut bench = Bench::doubting(paged());
    let step = bench.page("20", &[("a", "1"), ("b", "15")]);
    assert_eq!((text(&step.events), step.action), (String::new(), list("", Some(500))));
    assert!(step.holds_list_permit && bench.reflector.last.as_str() == "10");
    let comparison = bench.comparison;
    assert_eq!(step.reports, [ReflectorReport::ConfirmingList { version: "20".into(), comparison }]);
    assert_eq!(bench.reflector.doubted.as_ref().map(|doubted| doubted.comparison), Some(comparison));
    let step = bench.step(ReflectorInput::Page(Ok(ListPage {
        resource_version: "25".into(),
        items: [("a", "1"), ("c", "7"), ("d", "20"), ("e", "21")].map(|(name, version)| object(name, version)).into(),
        ..ListPage::default()
    })));
    assert_eq!(text(&step.events), "=[a1 b15 c7 d20]@20 spares e21", "what is later comes from the watch");
    assert_eq!(step.reports, [ReflectorReport::ListConfirmed { version: "20".into(), found: 3 }]);
    assert_eq!(step.action, watch("20"), "b may be gone since");
    assert_eq!(bench.reflector.counters.confirmations, 1);
}

/// Rule: D-15.
#[test]
fn failed_confirmation_deletes_nothing() {
    let mut bench = Bench::doubting(paged());
    bench.page("20", &[]);
    let step = bench.fail_list(status(500));
    assert!(step.events.is_empty(), "R-25");
    let step = bench.waits(&step, 1.6);
    assert_eq!(step.action, list("", Some(500)), "a cycle of its own");
    assert!(bench.reflector.doubted.is_none());
    assert_eq!(bench.page("21", &[]).action, list("", Some(500)));
    let step = bench.page("22", &[]);
    assert_eq!((text(&step.events).as_str(), step.action), ("=[]@21", watch("21")), "the second is not doubted");
    assert_eq!(bench.reflector.counters.confirmations, 2);
}

#[test]
fn older_confirmation_confirms_nothing() {
    let mut bench = Bench::doubting(paged());
    bench.page("20", &[]);
    let step = bench.page("19", &[("a", "1")]);
    assert!(step.events.is_empty());
    assert!(matches!(step.reports[..], [ReflectorReport::OlderListRefused { .. }]));
    assert_eq!(bench.waits(&step, 1.6).action, list("", Some(500)));
}

#[test]
fn doubtful_streaming_list_is_confirmed_by_list() {
    for (mode, second) in [(StreamingLists::Auto, list("", Some(500))), (StreamingLists::Always, streaming(""))] {
        let mut bench = Bench::streaming(ReflectorConfig { streaming_lists: mode, ..ReflectorConfig::default() });
        bench.comparison = Comparison { known: 200, missing: 200 };
        let step = bench.receive(vec![marker("20"), added("z", "21")]);
        assert_eq!((text(&step.events), step.action), (String::new(), second), "{mode:?}");
        let step = if mode == StreamingLists::Auto {
            bench.page("22", &[("a", "1"), ("z", "21")])
        } else {
            bench.feed(ReflectorInput::Opened(Ok(())));
            bench.receive(vec![added("a", "1"), added("z", "21"), marker("22"), added("y", "23")])
        };
        assert_eq!((text(&step.events).as_str(), step.action), ("=[a1]@20 spares z21", watch("20")), "{mode:?}");
    }
}

/// Rule: D-16.
#[test]
fn saved_version_is_checked_before_watch() {
    let mut bench = Bench::saved(ReflectorConfig::default(), "77");
    let step = bench.feed(ReflectorInput::Start);
    assert_eq!((step.action, step.holds_list_permit), (list("", Some(1)), true));
    assert!(matches!(bench.reflector.state, State::Checking));
    let step = bench.fail_list(status(500));
    assert_eq!(bench.waits(&step, 0.8).action, list("", Some(1)), "and not a relist");
    let step = bench.page("77", &[("a", "1")]);
    assert_eq!((text(&step.events), step.action), (String::new(), watch("77")));
    assert_eq!(bench.reflector.counters.checks, 2);
    for unusable in ["", "0"] {
        let mut bench = Bench::saved(paged(), unusable);
        assert_eq!(bench.feed(ReflectorInput::Start).action, list("0", Some(500)), "nothing to hold");
    }
}

/// Rule: D-5.
#[test]
fn older_server_is_believed_by_most_recent_list() {
    for config in [paged(), ReflectorConfig::default()] {
        let mut bench = Bench::saved(config, "77");
        bench.feed(ReflectorInput::Start);
        let step = bench.page("60", &[("a", "1")]);
        assert_eq!(step.reports, [ReflectorReport::ServerOlder { version: "60".into(), last: "77".into() }]);
        assert!(step.events.is_empty(), "one object is no list");
        let step = if config.streaming_lists == StreamingLists::Never {
            assert_eq!(step.action, list("", Some(500)));
            bench.page("61", &[("b", "2")])
        } else {
            assert_eq!(step.action, streaming(""));
            bench.feed(ReflectorInput::Opened(Ok(())));
            bench.receive(vec![added("b", "2"), marker("61")])
        };
        assert_eq!(text(&step.events), "=[b2]@61");
        assert_eq!(step.reports, [ReflectorReport::ServerWentBack { version: "61".into(), last: "77".into() }]);
        assert_eq!(bench.reflector.last.as_str(), "61");
    }
}

/// Rules: R-26, D-5.
#[test]
fn list_older_than_saved_cache_is_refused() {
    let mut bench = Bench::saved(paged(), "77");
    bench.feed(ReflectorInput::Start);
    assert_eq!(bench.page("80", &[]).action, watch("77"));
    let step = bench.refuse(expired());
    assert_eq!(bench.waits(&step, 0.8).action, list("77", None));
    let step = bench.page("70", &[]);
    assert_eq!((text(&step.events), step.action), (String::new(), list("", None)), "a replica that lags behind");
    let step = bench.page("80", &[("a", "1")]);
    assert_eq!((text(&step.events).as_str(), step.action), ("=[a1]@80", watch("80")));
    assert_eq!(step.reports, Vec::new());
}

/// Rule: D-16.
#[test]
fn silent_watch_is_followed_by_version_check() {
    let long = 90.0;
    for (heard, passed, checked) in [
        (vec![], long, true),
        (vec![], long - 1.0, false),
        (vec![bookmark("10")], long, false),
        (vec![added("b", "11")], long, false),
        (vec![foreign("11")], long, false),
        (vec![bookmark("9")], long, true),
    ] {
        let mut bench = Bench::watching(paged());
        bench.receive(heard.clone());
        let step = bench.after(passed).end();
        let is_check = step.action == list("", Some(1));
        assert_eq!(is_check, checked, "{heard:?}: {:?}", step.action);
        if checked {
            assert_eq!(bench.page("10", &[]).action, watch("10"));
        }
    }
}

/// Rule: R-60.
#[test]
fn version_check_does_not_delay_resync() {
    let mut bench = Bench::watching(ReflectorConfig { resync_period: seconds(100.0), ..paged() });
    bench.after(95.0).end();
    bench.page("10", &[]);
    let opened = bench.feed(ReflectorInput::Opened(Ok(())));
    assert_eq!(opened.action, ReflectorAction::Read { until: seconds(100.0) });
}
