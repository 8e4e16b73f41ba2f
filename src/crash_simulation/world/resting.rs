//! The final phase: everything becomes idle and is checked.

use super::*;

impl World<'_> {
    /// Runs until everything is idle.
    pub(super) fn drain(&mut self) {
        if self.process.is_none() {
            self.boot();
        }
        for _ in 0..2_000 {
            self.steps += 1;
            self.now += Duration::from_millis(20);
            for number in 0..self.sites.len() {
                self.advance(number, true);
                self.settle(number);
            }
            self.end_sync();
            self.begin_sync();
            self.end_sync();
            self.end_compaction();
            for handler in 0..HANDLERS {
                self.read(handler);
                self.send(handler);
                self.deliver(handler, WELL);
            }
            let Self { process, sites, .. } = self;
            let Process { units, consumers, journal, .. } = process.as_ref().expect("the process runs");
            let is_level = units.iter().zip(sites).all(|(unit, site)| unit.is_level(site));
            if is_level && consumers.iter().all(|consumer| journal.stats(consumer.reader).position == journal.last()) {
                return;
            }
        }
        panic!("the simulation does not become idle");
    }

    /// Runs until everything is idle and checks the result (I1, I4). After another clean start no event may be repeated.
    pub(in crate::crash_simulation) fn finish(mut self) {
        self.drain();
        for (number, site) in self.sites.iter().enumerate() {
            let process = self.process.as_ref().expect("the process runs");
            let shown = |objects: Vec<crate::object::Object>| -> BTreeMap<String, (String, u64)> {
                let pair = |object: &crate::object::Object| {
                    (object.name().to_owned(), (object.uid().to_owned(), version_of(object)))
                };
                objects.iter().map(pair).collect()
            };
            let unit = &process.units[number];
            assert_eq!(shown(unit.indexer.objects()), site.state(), "I1: the cache of unit {number}");
            assert_eq!(shown(self.disk.now.objects(unit.id)), site.state(), "I1: the saved state of unit {number}");
        }
        for handler in 0..HANDLERS {
            self.check_delivered(handler);
            self.check_sink(handler);
        }
        let deliveries: Vec<_> = self.sinks.iter().map(|sink| sink.deliveries).collect();
        self.end_save();
        self.begin_save();
        self.end_save();
        self.disk.write(Write::Clean);
        self.disk.sync(self.disk.log.len());
        self.process = None;
        self.drain();
        let after: Vec<_> = self.sinks.iter().map(|sink| sink.deliveries).collect();
        assert_eq!(after, deliveries, "I4: after a clean stop something comes again");
    }

    /// Checks that every record that was journaled and not lost was delivered to all handlers that want it (I4).
    fn check_delivered(&self, handler: usize) {
        let changes = route(handler).changes;
        let wanted = self.journaled.iter().filter(|(_, record)| changes.contains(&record.change));
        for (name, record) in wanted {
            let is_there = self.sinks[handler].accepted.contains(name) || self.merged[handler].contains(name);
            assert!(is_there, "I4: handler {handler} never got {} {:?}", name.1, record.change);
        }
    }

    /// Checks that the consumer's state equals the server's, except for ignored updates (I1).
    fn check_sink(&mut self, handler: usize) {
        let Self { sinks, sites, journaled, fsync, lost, shown_and_lost, hits, .. } = self;
        let sink = &sinks[handler];
        let listed: BTreeMap<(u32, &str), u64> = journaled.values().filter_map(initial).collect();
        for (drops_repeated, shown) in [(true, &sink.objects), (false, &sink.plain)] {
            let mut expected = BTreeMap::new();
            for (unit, site) in (0..).zip(&*sites) {
                for (name, (uid, version)) in site.state() {
                    let version = site.content(&uid, version);
                    let at_first = listed.get(&(unit, uid.as_str())).map(|version| site.content(&uid, *version));
                    let is_skipped = sink.skips && at_first == Some(version);
                    if !is_skipped || shown.contains_key(&(unit, name.clone())) {
                        expected.insert((unit, name), (uid, version));
                    }
                }
            }
            let mut found = BTreeMap::new();
            for (place, Known { uid, version, by }) in shown {
                let known = (uid.clone(), sites[place.0 as usize].content(uid, *version));
                let is_wrong = expected.get(place) != Some(&known);
                let is_over = sites[place.0 as usize].lives[uid].is_over;
                // Exception for `fsync = "<interval>"`: a state that was shown and then lost is corrected only by a later event.
                let is_repeated = |(uid, version): &(String, u64)| {
                    drops_repeated && shown_and_lost[handler].contains(&(place.0, uid.clone(), *version))
                };
                let is_excused = lost.contains(by)
                    || expected.get(place).is_some_and(is_repeated)
                    || (drops_repeated && sink.disordered.contains(place));
                if is_wrong && *fsync != Fsync::Group && is_excused {
                    assert!(is_over || drops_repeated || sink.skips, "I1: handler {handler}: {place:?} stays old");
                    hits.add(if is_over { "interval: a ghost stays" } else { "interval: an old state stays" });
                    expected.remove(place);
                } else {
                    found.insert(place.clone(), known);
                }
            }
            assert_eq!(found, expected, "I1: handler {handler}, without what repeats an id: {drops_repeated}");
        }
    }
}

fn initial(record: &Record) -> Option<((u32, &str), u64)> {
    match &record.change {
        Change::Added { object, cause: Cause::Initial } => Some(((record.unit.0, object.uid()), version_of(object))),
        _ => None,
    }
}
