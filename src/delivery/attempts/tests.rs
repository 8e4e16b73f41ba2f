use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn policy() -> Retry {
    Retry {
        initial: Duration::from_secs(1),
        max: Duration::from_secs(8),
        jitter: false,
        give_up_after: Duration::from_mins(1),
    }
}

fn failed() -> AttemptOutcome {
    Err(AttemptError::Failed(HandlerError::Failed("down".into())))
}

fn panicked() -> AttemptOutcome {
    Err(AttemptError::Panicked("boom".into()))
}

#[test]
fn retry_delays_double_and_jitter_shortens_them() {
    let delays: Vec<_> = (1..6).map(|failures| policy().delay(failures, 0.0).as_secs()).collect();
    assert_eq!(delays, [1, 2, 4, 8, 8]);
    let jitter = Retry { jitter: true, ..policy() };
    assert_eq!(jitter.delay(1, 0.0), Duration::from_millis(500));
    assert!(jitter.delay(u32::MAX, 0.999) <= jitter.max);
}

#[test]
fn failed_batch_is_retried_until_given_up() {
    let mut delivery = Attempts::new(policy(), 3, Form::Whole);
    assert_eq!(delivery.step, AttemptStep::Attempt(0..3, Form::Whole));
    delivery.finished(failed(), Duration::from_secs(100), 0.0);
    assert_eq!((&delivery.step, delivery.not_before.as_secs()), (&AttemptStep::Attempt(0..3, Form::Whole), 101));
    delivery.finished(failed(), Duration::from_secs(159), 0.0);
    assert_eq!((&delivery.step, delivery.not_before.as_secs()), (&AttemptStep::Attempt(0..3, Form::Whole), 161));
    delivery.finished(failed(), Duration::from_secs(160), 0.0);
    assert_eq!(delivery.step, AttemptStep::GiveUp(0..3, GiveUp::Expired("down".into())));
    delivery.advance();
    assert_eq!(delivery.step, AttemptStep::Done);
}

/// Rule: S-9.
#[test]
fn third_panic_sends_poison_event_to_dead_letter() {
    let (delivered, given_up, attempts) =
        play(9, Form::Reference, |range, _| if range.contains(&6) { panicked() } else { Ok(()) });
    assert_eq!(given_up, [6]);
    assert_eq!(delivered, [0, 1, 2, 3, 4, 5, 7, 8]);
    assert_eq!(attempts.iter().filter(|(range, _)| *range == (6..7)).count(), 3);
}

#[test]
fn rejected_event_is_isolated_and_given_up() {
    let rejected = || Err(AttemptError::Failed(HandlerError::Rejected("too large".into())));
    let (delivered, given_up, attempts) =
        play(4, Form::Reference, |range, _| if range.contains(&2) { rejected() } else { Ok(()) });
    assert_eq!((delivered, given_up), (vec![0, 1, 3], vec![2]));
    assert_eq!(ranges(&attempts), [0..4, 0..2, 2..4, 2..3, 3..4]);
    assert!(attempts.iter().all(|(_, form)| *form == Form::Whole), "a smaller form would not help");
}

fn too_large() -> AttemptOutcome {
    Err(AttemptError::Failed(HandlerError::TooLarge("413".into())))
}

fn ranges(attempts: &[(Range<usize>, Form)]) -> Vec<Range<usize>> {
    attempts.iter().map(|(range, _)| range.clone()).collect()
}

#[test]
fn oversized_batch_is_halved_then_reduced_then_dropped() {
    use Form::{Reference, Whole, WithoutOld};
    // The first event fits without its old, the third in no form; the others fit as a whole.
    let (delivered, given_up, attempts) = play(4, Reference, |range, form| {
        let fits = match (range.start, range.len()) {
            (0, 1) => form >= WithoutOld,
            (2, 1) => false,
            (_, events) => events == 1,
        };
        if fits { Ok(()) } else { too_large() }
    });
    assert_eq!((delivered, given_up), (vec![0, 1, 3], vec![2]));
    let single: Vec<_> = attempts.iter().filter(|(range, _)| range.len() == 1).cloned().collect();
    let expected = [(0, Whole), (0, WithoutOld), (1, Whole), (2, Whole), (2, WithoutOld), (2, Reference), (3, Whole)];
    assert_eq!(single, expected.map(|(event, form)| (event..event + 1, form)));
    assert!(attempts.iter().all(|(range, form)| range.len() == 1 || *form == Whole));
}

#[test]
fn formless_handler_gets_whole_events_only() {
    let (_, given_up, attempts) = play(1, Form::Whole, |_, _| too_large());
    assert_eq!((given_up, attempts), (vec![0], vec![(0..1, Form::Whole)]));
}

/// Every result of an attempt, for one and several events, in every possible form.
#[test]
fn every_outcome_leads_to_its_step() {
    use Form::{Reference, Whole, WithoutOld};
    let error = || "e".to_owned();
    let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
    let again = Err(AttemptError::Failed(HandlerError::Failed(error())));
    let busy = Err(AttemptError::Failed(HandlerError::Busy { reason: error(), retry_after: Duration::from_hours(1) }));
    let too_large = Err(AttemptError::Failed(HandlerError::TooLarge(error())));
    let rejected = Err(AttemptError::Failed(HandlerError::Rejected(error())));
    let closed = Err(AttemptError::Failed(HandlerError::Closed(error())));
    let panicked = Err(AttemptError::Panicked(error()));
    let give_up = |reason: fn(String) -> GiveUp| AttemptStep::GiveUp(0..1, reason(error()));
    for form in [Whole, WithoutOld, Reference] {
        let one = |form: Form| AttemptStep::Attempt(0..1, form);
        let cases = [
            (&Ok(()), AttemptStep::Done, zero),
            (&again, one(form), second),
            (&busy, one(form), second),
            (&too_large, form.smaller().map_or_else(|| give_up(GiveUp::TooLarge), one), zero),
            (&rejected, give_up(GiveUp::Rejected), zero),
            (&closed, AttemptStep::Closed(error()), zero),
            (&panicked, one(form), second),
        ];
        for (outcome, expected, not_before) in cases {
            let mut delivery = Attempts::new(policy(), 1, Reference);
            while delivery.step != AttemptStep::Attempt(0..1, form) {
                delivery.finished(too_large.clone(), Duration::ZERO, 0.0);
            }
            delivery.finished(outcome.clone(), Duration::ZERO, 0.0);
            let step = (&delivery.step, delivery.not_before);
            assert_eq!(step, (&expected, not_before), "one event, {form:?}, {outcome:?}");
        }
    }
    let [all, half] = [4, 2].map(|len| AttemptStep::Attempt(0..len, Whole));
    let cases = [
        (Ok(()), &AttemptStep::Done, zero),
        (again, &all, second),
        (busy, &all, second),
        (too_large, &half, zero),
        (rejected, &half, zero),
        (closed, &AttemptStep::Closed(error()), zero),
        (panicked, &half, zero),
    ];
    for (outcome, expected, not_before) in cases {
        let mut delivery = Attempts::new(policy(), 4, Reference);
        delivery.finished(outcome.clone(), Duration::ZERO, 0.0);
        assert_eq!((&delivery.step, delivery.not_before), (expected, not_before), "four events, {outcome:?}");
    }
}

#[test]
fn closed_sink_ends_handler() {
    let mut delivery = Attempts::new(policy(), 2, Form::Whole);
    delivery.finished(Err(AttemptError::Failed(HandlerError::Closed("pipe".into()))), Duration::ZERO, 0.0);
    assert_eq!(delivery.step, AttemptStep::Closed("pipe".into()));
    assert_eq!(Attempts::new(policy(), 0, Form::Whole).step, AttemptStep::Done);
}

/// Delivered events, given-up events, and the attempts.
type Played = (Vec<usize>, Vec<usize>, Vec<(Range<usize>, Form)>);

/// Plays a delivery with an answer for each attempt. Time passes only by the delays.
fn play(len: usize, smallest: Form, mut answer: impl FnMut(&Range<usize>, Form) -> AttemptOutcome) -> Played {
    let (mut delivered, mut given_up, mut attempts) = (Vec::new(), Vec::new(), Vec::<(Range<usize>, Form)>::new());
    let mut delivery = Attempts::new(policy(), len, smallest);
    let mut now = Duration::ZERO;
    loop {
        match delivery.step.clone() {
            AttemptStep::Attempt(range, form) => {
                now = now.max(delivery.not_before);
                assert_eq!(range.start, delivered.len() + given_up.len(), "in order, each once");
                assert!(form <= smallest && (range.len() == 1 || form == Form::Whole));
                if let Some((_, before)) = attempts.last().filter(|(before, _)| *before == range) {
                    assert!(form >= *before, "forms never get larger");
                }
                let outcome = answer(&range, form);
                attempts.push((range.clone(), form));
                if outcome == Ok(()) {
                    delivered.extend(range);
                }
                delivery.finished(outcome, now, 0.5);
            }
            AttemptStep::GiveUp(range, reason) => {
                assert!(range.len() == 1 || matches!(reason, GiveUp::Expired(_)), "only one event is poison");
                given_up.extend(range);
                delivery.advance();
            }
            AttemptStep::Done | AttemptStep::Closed(_) => return (delivered, given_up, attempts),
        }
    }
}

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Whole), Just(Form::WithoutOld), Just(Form::Reference)]
}

proptest! {
    /// Rule E4: each event is delivered or given up once and in order, for any sequence of failures.
    #[test]
    fn any_failure_script_delivers_or_drops_each_event(
        len in 0..20_usize,
        smallest in form(),
        script in proptest::collection::vec(0..7_u8, 0..200),
    ) {
        let mut script = VecDeque::from(script);
        let mut closed = false;
        let (delivered, given_up, _) = play(len, smallest, |_, _| match script.pop_front() {
            Some(1) => failed(),
            Some(2) => panicked(),
            Some(3) => Err(AttemptError::Failed(HandlerError::Rejected("no".into()))),
            Some(4) if script.len() % 17 == 0 => {
                closed = true;
                Err(AttemptError::Failed(HandlerError::Closed("end".into())))
            }
            Some(5) => too_large(),
            Some(6) => Err(AttemptError::Failed(HandlerError::Busy { reason: "429".into(), retry_after: Duration::from_secs(20) })),
            _ => Ok(()),
        });
        prop_assert!(closed || delivered.len() + given_up.len() == len);
    }

    /// Rule S-9: exactly the poison events are given up, at any positions.
    #[test]
    fn exactly_poison_is_given_up(len in 1..64_usize, poison in proptest::collection::btree_set(0..64_usize, 0..6)) {
        let (_, given_up, _) = play(len, Form::Reference, |range, _| {
            if range.clone().any(|event| poison.contains(&event)) { panicked() } else { Ok(()) }
        });
        prop_assert_eq!(given_up, poison.iter().copied().filter(|event| *event < len).collect::<Vec<_>>());
    }

    /// Each event is delivered in the largest form that the sink accepts, independent of its neighbours.
    #[test]
    fn each_event_is_delivered_in_largest_fitting_form(
        sizes in proptest::collection::vec((1..40_usize, 1..20_usize, 1..12_usize), 1..24),
    ) {
        let limit = 10;
        let size = |event: usize, form: Form| match form {
            Form::Whole => sizes[event].0,
            Form::WithoutOld => sizes[event].1,
            Form::Reference => sizes[event].2,
        };
        let fits = |range: &Range<usize>, form| range.clone().map(|event| size(event, form)).sum::<usize>() <= limit;
        let (_, given_up, attempts) = play(sizes.len(), Form::Reference, |range, form| {
            if fits(range, form) { Ok(()) } else { too_large() }
        });
        let hopeless = |event: &usize| (0..3).all(|form| size(*event, [Form::Whole, Form::WithoutOld, Form::Reference][form]) > limit);
        prop_assert_eq!(given_up, (0..sizes.len()).filter(hopeless).collect::<Vec<_>>());
        for (range, form) in attempts.iter().filter(|(range, form)| fits(range, *form)) {
            prop_assert!(*form == Form::Whole || !fits(range, Form::Whole));
        }
    }
}
