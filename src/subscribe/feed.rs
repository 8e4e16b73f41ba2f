//! The reader of the journal for all subscribers; it fills the ring.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    hub::{Hub, Phase, SubscribeError},
    ring::Ring,
};
use crate::journal::{ReaderId, Record};

/// Time for which the ring is fed after the last subscriber has left. A client that reconnects in this time finds its
/// position.
const LINGER: Duration = Duration::from_mins(5);
/// Maximum number of events of one read of the journal.
const READ_EVENTS: usize = 512;
const READ_BYTES: usize = 4 << 20;
/// Pause after each wake-up of the subscribers, multiplied by their number. So many subscribers are woken less often, and receive
/// more events at a time.
const PAUSE_EACH: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Reader of the journal for all subscribers.
pub(super) struct Feed {
    pub(super) hub: Arc<Hub>,
    pub(super) reader: ReaderId,
}

impl Hub {
    /// Starts a feed if none is running.
    pub(super) fn feed(self: &Arc<Self>) -> Result<(), SubscribeError> {
        let mut ring = self.ring();
        if ring.is_some() {
            return Ok(());
        }
        let bounds = self.options.bounds();
        let reader = self.router.open_feed(bounds)?;
        let feed = Feed { hub: Arc::clone(self), reader };
        // The ring can start here: the reader will fetch every event after this position.
        let position = self.journal.stats(reader).position;
        *ring = Some((reader, Ring::new(position, bounds)));
        drop(ring);
        tokio::spawn(feed.run());
        Ok(())
    }
}

impl Drop for Feed {
    /// Removes the ring when the feed ends, also after a panic. Remaining subscribers find no ring, and their streams end.
    fn drop(&mut self) {
        self.hub.router.close(self.reader);
        self.hub.ring().take_if(|(reader, _)| *reader == self.reader);
        self.hub.news.send_modify(|_| {});
    }
}

impl Feed {
    /// Reads until there has been no subscriber for [`LINGER`], or the engine has ended.
    pub(super) async fn run(self) {
        let mut phase = self.hub.phase.subscribe();
        let mut idle_since = Instant::now();
        loop {
            let is_ending = *phase.borrow() == Phase::Ending;
            let records = self.hub.journal.fetch(self.reader, READ_EVENTS, READ_BYTES).await;
            if self.hub.subscribers.load(Relaxed) > 0 {
                idle_since = Instant::now();
            }
            let is_empty = records.is_empty();
            self.take(records);
            if !is_empty {
                sleep(pause(self.hub.subscribers.load(Relaxed))).await;
            } else if is_ending {
                self.hub.news.send_replace(true);
                return self.hub.left().await; // until then, the ring stays
            } else if idle_since.elapsed() >= LINGER && self.is_left() {
                return;
            } else {
                tokio::select! {
                    () = self.hub.journal.readable(self.reader) => {}
                    _ = phase.changed() => {}
                    () = sleep(LINGER) => {}
                }
            }
        }
    }

    /// Removes the ring and returns true, unless a subscriber has connected meanwhile.
    fn is_left(&self) -> bool {
        let mut ring = self.hub.ring();
        let is_left = self.hub.subscribers.load(Relaxed) == 0;
        ring.take_if(|_| is_left);
        is_left
    }

    /// Puts records in the ring, and wakes the subscribers.
    fn take(&self, records: Vec<Record>) {
        let Self { hub, reader } = self;
        let read = records.last().map(|record| record.sequence);
        let events = hub.router.table().events(records);
        let entries: Vec<_> = events.into_iter().map(|event| hub.entry(event)).collect();
        if let Some(read) = read {
            hub.journal.ack(*reader, read);
        }
        let (mut position, mut lost) = (hub.journal.stats(*reader).position, 0);
        // A loss moves the position, and may happen between two calls. So the loop reads the position again until no further loss
        // is reported.
        loop {
            let losses = hub.journal.take_losses(*reader);
            let more = losses.named.len() as u64 + losses.unnamed;
            if more == 0 {
                break;
            }
            lost += more;
            position = hub.journal.stats(*reader).position;
        }
        let mut ring = hub.ring();
        let Some((_, ring)) = ring.as_mut() else { return };
        if lost > 0 {
            if !hub.journal.is_stored() {
                warn!(events = lost, "streams have a gap: the journal dropped events that were not read in time");
            } // else subscribers read these events from the store
            ring.cut(position);
        } else {
            for entry in entries {
                ring.push(entry);
            }
            ring.reach(position);
        }
        if read.is_some() || lost > 0 {
            hub.news.send_modify(|_| {});
        }
    }
}

/// Returns the pause after subscribers were woken.
fn pause(subscribers: usize) -> Duration {
    PAUSE_EACH.saturating_mul(u32::try_from(subscribers).unwrap_or(u32::MAX)).min(PAUSE_MAX)
}
