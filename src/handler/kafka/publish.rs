//! Storing the messages of one batch, all at once.

use std::sync::Arc;

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};

use super::{
    answers::{Answer, Answers},
    client::Client,
    failure::Failure,
    message::{KafkaMessageWriter, Message},
    sent::{MessageOf, Sent, State},
};
use crate::{
    handler::{Form, HandlerError},
    notification::{Event, Notification},
    trace::TraceContext,
};

/// One attempt to store the messages of a batch. Dropped before all are stored, what is known of each is remembered for
/// the next one.
pub(super) struct Publisher<'a> {
    client: &'a Client,
    writer: &'a KafkaMessageWriter,
    sent: &'a Sent,
    events: &'a [Event],
    trace: Option<TraceContext>,
    form: Form,
    progress: Vec<Progress>,
    answers: Arc<Answers>,
    unanswered: usize,
    /// Messages that an earlier attempt sent.
    left_over: FuturesUnordered<BoxFuture<'a, (usize, Answer)>>,
    /// The message being sent, made over and over in one place.
    message: Message,
    /// The first failure.
    result: Result<(), HandlerError>,
}

/// What this attempt knows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No more than was known before, or that nobody has it.
    None,
    /// The client has it, of this attempt.
    Sent,
    /// The broker has it.
    Stored,
}

impl<'a> Publisher<'a> {
    /// Begins an attempt.
    pub(super) fn new(
        client: &'a Client,
        writer: &'a KafkaMessageWriter,
        sent: &'a Sent,
        batch: &'a Notification,
        form: Form,
    ) -> Self {
        let events = batch.events();
        Self {
            client,
            writer,
            sent,
            events,
            trace: batch.trace(),
            form,
            progress: vec![Progress::None; events.len()],
            answers: Arc::default(),
            unanswered: 0,
            left_over: FuturesUnordered::new(),
            message: Message::default(),
            result: Ok(()),
        }
    }

    /// Stores all messages side by side. Continues after a failure, and returns the first one.
    pub(super) async fn store_all(mut self) -> Result<(), HandlerError> {
        for index in 0..self.events.len() {
            self.begin(index);
        }
        if self.unanswered > 0 {
            for (index, answer) in self.answers.read(self.unanswered).await {
                self.take(index, answer);
            }
        }
        while let Some((index, answer)) = self.left_over.next().await {
            self.take(index, answer);
        }
        let result = std::mem::replace(&mut self.result, Ok(()));
        if result.is_ok() {
            self.progress.clear(); // the batch is delivered
        }
        result
    }

    /// Sends a message, unless an earlier attempt has.
    fn begin(&mut self, index: usize) {
        let (sent, message) = (self.sent, MessageOf(&self.events[index], self.form));
        match sent.take(message) {
            Some(State::Stored) => self.take(index, Ok(())),
            Some(State::Sent(report)) => {
                self.left_over.push(Box::pin(async move { (index, sent.wait(message, report).answer().await) }));
            }
            None => match self.writer.write(&self.events[index], self.form, &mut self.message) {
                Ok(()) => {
                    if let Some(trace) = self.trace {
                        self.message.trace(trace);
                    }
                    self.progress[index] = Progress::Sent;
                    self.unanswered += 1;
                    self.client.send(&self.message, self.answers.ticket(index));
                }
                Err(error) => self.fail(index, error),
            },
        }
    }

    fn take(&mut self, index: usize, answer: Answer) {
        match answer {
            Ok(()) => self.progress[index] = Progress::Stored,
            Err(failure) => {
                let error = self.meaning(&failure, &self.events[index]);
                self.fail(index, error);
            }
        }
    }

    fn fail(&mut self, index: usize, error: HandlerError) {
        self.progress[index] = Progress::None;
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }

    fn meaning(&self, failure: &Failure, event: &Event) -> HandlerError {
        let topic = self.writer.topic.topic(&self.writer.cluster, event);
        let meaning = failure.meaning(&topic);
        if failure.is_unknown_topic() {
            self.client.miss(topic);
        }
        meaning
    }
}

impl Drop for Publisher<'_> {
    fn drop(&mut self) {
        let all = || self.progress.iter().copied().enumerate();
        let message = |index: usize| MessageOf(&self.events[index], self.form);
        for (index, _) in all().filter(|(_, progress)| *progress == Progress::Stored) {
            self.sent.keep(message(index), State::Stored);
        }
        let open = all().filter(|(_, progress)| *progress == Progress::Sent);
        for (index, report) in self.answers.leave(open.map(|(index, _)| index)) {
            self.sent.keep(message(index), State::Sent(report));
        }
    }
}
