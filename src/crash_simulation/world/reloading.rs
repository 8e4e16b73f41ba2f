//! Changes of the configuration: while the process runs, and between two runs.

use super::*;

impl World<'_> {
    /// Changes the configuration. A running process applies it to its handlers like `ConfiguredHandlers::apply`, and then to its units.
    pub(super) fn reload(&mut self) {
        self.configuration.change(&mut self.random);
        let is_running = self.process.is_some();
        self.trace(|| format!("configuration changed: {:?}", self.configuration));
        self.hits.add(if is_running { "reload" } else { "reload: between two runs" });
        if !is_running {
            return;
        }
        let cut = self.random.chance(0.15).then(|| self.random.below(HANDLERS));
        for handler in 0..HANDLERS {
            if cut == Some(handler) {
                self.hits.add("crash: within a reload");
                let loses_tail = self.random.chance(0.5);
                return self.crash(loses_tail);
            }
            self.change_handler(handler);
        }
        let process = self.process();
        if process.discovered {
            for of_type in &mut process.types {
                of_type.due = of_type.due.max(Some(Occasion::Reload));
            }
        }
    }

    fn change_handler(&mut self, handler: usize) {
        let process = self.process.as_ref().expect("the process runs");
        let before = process.consumers[handler].as_ref().map(|_| process.routes[handler]);
        match (before, self.configuration.route(handler, before.unwrap_or_default())) {
            (None, Some(entries)) => {
                self.hits.add("reload: a handler is added");
                self.open_handler(handler, entries);
            }
            (Some(_), None) => {
                self.hits.add("reload: a handler is removed");
                self.close_handler(handler);
            }
            (Some(before), Some(entries)) if before != entries => {
                self.hits.add("reload: a route changes");
                self.set_route(handler, entries);
            }
            _ => {}
        }
    }

    fn set_route(&mut self, handler: usize, entries: Entries) {
        let route = route(handler, entries);
        let Process { table, journal, consumers, routes, .. } = self.process.as_mut().expect("the process runs");
        let consumer = consumers[handler].as_ref().expect("it is open");
        self.sinks[consumer.sink].allowed.extend(table.taken(&route));
        let (interest, attachments) = table.set_route(consumer.reader, route);
        journal.set_interest(consumer.reader, &interest);
        routes[handler] = entries;
        self.trace(|| format!("handler {handler}: now on {:?}, attachments {attachments:?}", names(entries)));
        self.save_now();
        self.queue_attachments(attachments);
    }

    /// Removes a handler with its waiting events.
    fn close_handler(&mut self, handler: usize) {
        self.end_save();
        self.end_compaction();
        // The handler drains first. Known limit: an attachment that is not durable when its reader is closed is addressed to a
        // name, so after a crash a new handler of this name gets it.
        self.process().syncing = None;
        self.begin_sync();
        self.end_sync();
        let process = self.process();
        let Consumer { reader, sink, .. } = process.consumers[handler].take().expect("it is open");
        process.journal.close_reader(reader);
        self.sinks[sink].is_over = true;
        self.disk.write(Write::RemoveReader(name_of_handler(handler)));
        self.trace(|| format!("handler {handler}: removed"));
    }

    /// Saves the changed readers at once, as the journal does when an interest changes.
    pub(super) fn save_now(&mut self) {
        self.end_save();
        if self.process().compacting.as_ref().is_some_and(|compacting| compacting.state.is_some()) {
            self.go_on_compacting(); // an unfinished step comes first
        }
        self.begin_save();
        self.end_save();
    }
}
