//! The final phase: everything becomes idle and is checked.

use super::*;
use crate::{crash_simulation::sink::Place, object::Object};

impl World<'_> {
    /// Runs until everything is idle.
    pub(super) fn drain(&mut self) {
        if self.process.is_none() {
            self.boot();
        }
        self.discover();
        for _ in 0..2_000 {
            self.steps += 1;
            self.now += Duration::from_millis(20);
            (0..UNITS).for_each(|site| self.tend(site));
            for number in 0..self.process().units.len() {
                if self.process().units[number].runs() {
                    self.advance(number, true);
                    self.settle(number);
                }
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
            let Self { process, sites, .. } = &*self;
            let Process { units, consumers, journal, .. } = process.as_ref().expect("the process runs");
            let is_level = units.iter().all(|unit| unit.is_level(&sites[unit.shape.site]));
            if is_level
                && (0..UNITS).all(|site| self.is_settled(site))
                && consumers.iter().flatten().all(|consumer| journal.stats(consumer.reader).position == journal.last())
            {
                return;
            }
        }
        panic!("the simulation does not become idle");
    }

    /// Runs until everything is idle and checks the result (E1, E4). After another clean start no event may be repeated.
    pub(in crate::crash_simulation) fn finish(mut self) {
        self.reloads = false;
        self.drain();
        (0..UNITS).for_each(|site| self.check_caches(site));
        for (number, sink) in self.sinks.iter().enumerate().filter(|(_, sink)| !sink.is_over) {
            self.check_delivered(number, sink);
        }
        for number in 0..self.sinks.len() {
            if !self.sinks[number].is_over {
                self.check_sink(number);
            }
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
        assert_eq!(after, deliveries, "E4: after a clean stop something comes again");
    }

    /// Checks that the caches and the saved states of a type's units have the objects that the configuration selects (E1).
    fn check_caches(&self, number: usize) {
        let shapes = self.configuration.shapes(number);
        let site = &self.sites[number];
        let mut expected = site.state();
        expected.retain(|name, _| shapes.iter().any(|shape| shape.covers(site.collection.namespace(name))));
        let shown = |objects: Vec<Object>| {
            objects.into_iter().map(|object| (object.name().to_owned(), (object.uid().to_owned(), version_of(&object))))
        };
        let units = &self.process.as_ref().expect("the process runs").units;
        let of_site: Vec<_> = units.iter().filter(|unit| unit.shape.site == number).collect();
        assert_eq!(of_site.iter().map(|unit| unit.shape).collect::<Vec<_>>().len(), shapes.len(), "units of {number}");
        let cached: BTreeMap<_, _> = of_site.iter().flat_map(|unit| shown(unit.indexer.objects())).collect();
        let saved: BTreeMap<_, _> = of_site.iter().flat_map(|unit| shown(self.disk.now.objects(unit.id))).collect();
        assert_eq!(cached, expected, "E1: the caches of type {number}");
        assert_eq!(saved, expected, "E1: the saved states of type {number}");
    }

    /// Checks that every record that was journaled and not lost was delivered to the handlers that want it (E4).
    fn check_delivered(&self, number: usize, sink: &Sink) {
        for (name, (record, wanted)) in self.journaled.iter().filter(|(_, (_, wanted))| wanted.contains(&number)) {
            let is_there = sink.accepted.contains(name) || sink.merged.contains(name);
            assert!(is_there, "E4: handler {} never got {} {:?}, {wanted:?}", sink.handler, name.1, record.change);
        }
    }

    /// Checks that the consumer's state equals the server's, except for ignored updates (E1).
    fn check_sink(&mut self, number: usize) {
        let Self { sinks, sites, homes, configuration, journaled, fsync, lost, hits, .. } = self;
        let (sink, handler) = (&sinks[number], sinks[number].handler);
        let mut unseen: BTreeMap<(usize, &str), u64> = BTreeMap::new();
        if sink.skips {
            unseen.extend(journaled.values().filter_map(|(record, _)| initial(record, homes)));
        }
        for ((site, uid), version) in &sink.unseen {
            let newest = unseen.entry((*site, uid.as_str())).or_default();
            *newest = (*newest).max(*version);
        }
        let selects =
            |place: &Place| configuration.selects(handler, place.0, sites[place.0].collection.namespace(&place.1));
        for (drops_repeated, shown) in [(true, &sink.objects), (false, &sink.plain)] {
            let mut expected = BTreeMap::new();
            for (number, site) in sites.iter().enumerate() {
                for (name, (uid, version)) in site.state() {
                    let version = site.content(&uid, version);
                    let at_first = unseen.get(&(number, uid.as_str())).map(|version| site.content(&uid, *version));
                    let place = (number, name);
                    let is_skipped = at_first == Some(version) && !shown.contains_key(&place);
                    if selects(&place) && !is_skipped {
                        expected.insert(place, (uid, version));
                    }
                }
            }
            // Exception for `fsync = "<interval>"`: a state that was shown and then lost is corrected only by a later event.
            let mut found = BTreeMap::new();
            for (place, Known { uid, version, by }) in shown {
                let known = (uid.clone(), sites[place.0].content(uid, *version));
                let is_wrong = expected.get(place) != Some(&known);
                let is_over = sites[place.0].lives[uid].is_over || !selects(place);
                let is_repeated = |(uid, version): &(String, u64)| {
                    drops_repeated && sink.shown_and_lost.contains(&(place.0, uid.clone(), *version))
                };
                let is_excused = lost.contains(by)
                    || expected.get(place).is_some_and(is_repeated)
                    || (drops_repeated && sink.disordered.contains(place));
                if is_wrong && *fsync != Fsync::Group && is_excused {
                    assert!(is_over || drops_repeated || sink.skips, "E1: handler {handler}: {place:?} stays old");
                    hits.add(if is_over { "interval: a ghost stays" } else { "interval: an old state stays" });
                    expected.remove(place);
                } else {
                    found.insert(place.clone(), known);
                }
            }
            if *fsync != Fsync::Group {
                let is_away = |place: &Place| !shown.contains_key(place) && sink.is_last_lost(place, lost);
                expected.retain(|place, _| !is_away(place));
            }
            assert_eq!(found, expected, "E1: handler {handler}, without what repeats an id: {drops_repeated}");
        }
    }
}

fn initial<'a>(record: &'a Record, homes: &BTreeMap<UnitId, Shape>) -> Option<((usize, &'a str), u64)> {
    match &record.change {
        Change::Added { object, cause: Cause::Initial } => {
            Some(((homes[&record.unit].site, object.uid()), version_of(object)))
        }
        _ => None,
    }
}
