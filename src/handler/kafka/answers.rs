//! What becomes of the messages of one attempt, as the client's thread tells it.
//!
//! Each message has a [`Ticket`], which the client keeps as long as it has the message. The attempt is woken when all are
//! answered.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
};

use hashbrown::HashMap;
use tokio::sync::oneshot;

use super::failure::Failure;
use crate::mutex::lock;

/// What becomes of a message.
pub(super) type Answer = Result<(), Failure>;

/// Where the answer to one message arrives, once its attempt is over.
pub(super) type Report = oneshot::Receiver<Answer>;

/// Where the answers to the messages of one attempt arrive.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Inbox>);

#[derive(Debug, Default)]
struct Inbox {
    /// By the index of the message.
    unread: Vec<(usize, Answer)>,
    /// Number of answers that the attempt waits for.
    waits: Option<(usize, Waker)>,
    /// Once the attempt is over: who is told of a message.
    left_open: Option<HashMap<usize, oneshot::Sender<Answer>>>,
}

/// The way of one message's answer to its attempt. Dropped, the message is given up.
#[derive(Debug)]
pub(super) struct Ticket {
    answers: Option<Arc<Answers>>,
    message: usize,
}

impl Answers {
    /// Makes the ticket of a message.
    pub(super) fn ticket(self: &Arc<Self>, message: usize) -> Ticket {
        Ticket { answers: Some(Arc::clone(self)), message }
    }

    /// Waits for so many answers, and returns them.
    pub(super) async fn read(&self, to_come: usize) -> Vec<(usize, Answer)> {
        poll_fn(|context| {
            let mut inbox = lock(&self.0);
            if inbox.unread.len() >= to_come {
                return Poll::Ready(std::mem::take(&mut inbox.unread));
            }
            inbox.waits = Some((to_come, context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Ends the attempt: returns where the answers to its open messages arrive from now on.
    pub(super) fn leave(&self, open: impl Iterator<Item = usize>) -> Vec<(usize, Report)> {
        let mut inbox = lock(&self.0);
        let (mut senders, mut reports) = (HashMap::new(), Vec::new());
        for message in open {
            let (sender, report) = oneshot::channel();
            senders.insert(message, sender);
            reports.push((message, report));
        }
        for (message, answer) in inbox.unread.drain(..) {
            tell(&mut senders, message, answer);
        }
        inbox.left_open = Some(senders);
        reports
    }

    fn put(&self, message: usize, answer: Answer) {
        let mut inbox = lock(&self.0);
        if let Some(left_open) = &mut inbox.left_open {
            return tell(left_open, message, answer);
        }
        inbox.unread.push((message, answer));
        let unread = inbox.unread.len();
        let waits = inbox.waits.take_if(|(to_come, _)| unread >= *to_come);
        drop(inbox);
        if let Some((_, waker)) = waits {
            waker.wake();
        }
    }
}

fn tell(left_open: &mut HashMap<usize, oneshot::Sender<Answer>>, message: usize, answer: Answer) {
    if let Some(sender) = left_open.remove(&message) {
        drop(sender.send(answer)); // nobody asked again, and it was forgotten
    }
}

impl Ticket {
    /// Says what became of the message.
    pub(super) fn answer(mut self, answer: Answer) {
        self.put(answer);
    }

    fn put(&mut self, answer: Answer) {
        if let Some(answers) = self.answers.take() {
            answers.put(self.message, answer);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.put(Err(Failure::Dropped));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn attempt_is_woken_by_the_last_answer() {
        let answers = Arc::new(Answers::default());
        let [first, second] = [0, 1].map(|message| answers.ticket(message));
        let mut reading = Box::pin(answers.read(2));
        first.answer(Ok(()));
        assert!(poll!(&mut reading).is_pending());
        let waiting = async {
            tokio::task::yield_now().await;
            drop(second);
        };
        let (read, ()) = futures_util::join!(reading, waiting);
        assert_eq!(read, [(0, Ok(())), (1, Err(Failure::Dropped))], "a ticket that is dropped");
    }

    #[tokio::test]
    async fn d8_what_was_open_when_the_attempt_ended_is_told_one_by_one() {
        let answers = Arc::new(Answers::default());
        let [before, behind, never] = [0, 1, 2].map(|message| answers.ticket(message));
        before.answer(Ok(()));
        let reports = answers.leave(0..3);
        behind.answer(Err(Failure::Dropped));
        let mut found = reports.into_iter().map(|(message, mut report)| (message, report.try_recv().ok()));
        assert_eq!(found.next(), Some((0, Some(Ok(())))), "it was answered and not read");
        assert_eq!(found.next(), Some((1, Some(Err(Failure::Dropped)))));
        assert_eq!(found.next(), Some((2, None)));
        drop(never);
    }
}
