//! What one lane has read and not acknowledged: its [`Schedule`], and the calls under way.

use std::{future::pending, hash::BuildHasher as _};

use actix::MailboxError;
use futures_util::{FutureExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    Event, Notification,
    lane::{LaneAddress, Stopped},
    schedule::{BatchId, Item, Schedule, ScheduleOptions},
};
use crate::{journal::ChangeKind, object::Object};

/// The answer to a batch on its way.
pub(super) type Answer = (BatchId, Result<Result<(), Stopped>, MailboxError>);

/// What a lane has read and not acknowledged.
pub(super) struct Traffic {
    pub(super) schedule: Schedule<Event>,
    pub(super) calls: FuturesUnordered<LocalBoxFuture<'static, Answer>>,
    epoch: Instant,
}

impl Traffic {
    pub(super) fn new(options: ScheduleOptions) -> Self {
        Self { schedule: Schedule::new(options), calls: FuturesUnordered::new(), epoch: Instant::now() }
    }

    pub(super) fn take(&mut self, events: Vec<Event>) {
        let now = self.epoch.elapsed();
        for event in events {
            self.schedule.push(item(event), now);
        }
    }

    /// Sends the next batch, if there is one; `flush` says that none waits to become full.
    pub(super) fn send(&mut self, address: &LaneAddress, flush: bool) -> bool {
        let Some((id, events)) = self.schedule.next(self.epoch.elapsed(), flush) else { return false };
        let sent = address.events.send(Notification::new(events));
        self.calls.push(sent.map(move |answer| (id, answer)).boxed_local());
        true
    }

    /// Returns when a batch that waits to become full goes out as it is.
    pub(super) fn due(&self) -> Option<Instant> {
        self.schedule.due().map(|due| self.epoch + due)
    }
}

fn item(event: Event) -> Item<Event> {
    let hasher = foldhash::fast::FixedState::with_seed(11);
    let Event { unit, record } = &event;
    let resource = hasher.hash_one((&unit.resource.group, &unit.resource.plural));
    let object = record.object();
    let bytes = object.map_or(0, Object::size_bytes) + record.old().map_or(0, Object::size_bytes);
    let gone = matches!(ChangeKind::of(&record.change), ChangeKind::Deleted | ChangeKind::Removed);
    let object = object.map(|object| hasher.hash_one((resource, object.key())));
    Item { sequence: record.sequence, resource, object, gone, bytes, content: event }
}

/// Waits until a time; for ever where there is none.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
