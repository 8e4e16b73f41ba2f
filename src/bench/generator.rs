//! Generated objects: a seed determines every state of every object, so no object is stored.

use super::{
    Shape,
    field::{self, Draw, Field},
};
use crate::{
    object::ResourceType,
    simulator::{APPS, POD, RUNNING, Random, WEBSITE, template::ObjectTemplate, with_plain_values},
};

const EVENT: &str = include_str!("shapes/event.json");
const CONFIG_MAP: &str = include_str!("shapes/configmap.json");

/// First version of the generated objects.
const FIRST_VERSION: u64 = 1_000;

/// Generator of the objects `0..objects` of a shape, and of their changes 1, 2, 3 … without end. Generators with equal arguments
/// produce equal bytes.
#[derive(Debug)]
pub struct Generator {
    shape: Shape,
    objects: u64,
    seed: u64,
    resource: ResourceType,
    /// `"kind":"Pod","apiVersion":"v1",`
    type_meta: String,
    /// One template per application.
    templates: Vec<ObjectTemplate<Field>>,
    pool: Vec<u8>,
}

/// States of all objects. The state of an object is represented by the number of its last change.
#[derive(Clone, Debug, Default)]
pub struct States {
    at: u64,
    /// Number of the last change of each object; 0 if the object was never changed. The list is empty before the first change.
    last: Vec<u64>,
}

impl States {
    /// Returns the number of the last applied change.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Applies the changes up to `change`.
    pub fn advance(&mut self, generator: &Generator, change: u64) {
        if self.last.is_empty() && change > 0 {
            self.last = vec![0; usize::try_from(generator.objects).unwrap_or_default()];
        }
        for change in self.at + 1..=change {
            self.last[place(generator.drawn(change))] = change;
        }
        self.at = self.at.max(change);
    }

    /// Returns the number of the last change of an object; 0 if the object was never changed.
    pub fn last(&self, number: u64) -> u64 {
        self.last.get(place(number)).copied().unwrap_or_default()
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Generator {
    /// Compiles the templates of a shape. If `objects` is 0, the generator has one object.
    pub fn new(shape: Shape, objects: u64, seed: u64) -> Self {
        let resource = shape.resource();
        let (kind, version) = (&resource.kind, resource.api_version());
        let type_meta = if shape == Shape::Custom {
            format!(r#""apiVersion":"{version}","kind":"{kind}","#)
        } else {
            format!(r#""kind":"{kind}","apiVersion":"{version}","#)
        };
        let text = match shape {
            Shape::Pods | Shape::Diverse => POD.replace("${STATUS}", RUNNING),
            Shape::Custom => WEBSITE.to_owned(),
            Shape::Configmaps => CONFIG_MAP.to_owned(),
            Shape::Events => EVENT.to_owned(),
        };
        let text = if shape == Shape::Diverse { text } else { with_plain_values(&text) };
        let text = &text[1..]; // callers of `render` write the opening brace and the type
        let templates =
            APPS.iter().map(|app| ObjectTemplate::compile(text, |hole| field::fill(shape, app, hole))).collect();
        let pool = if shape == Shape::Configmaps { field::pool(seed) } else { Vec::new() };
        Self { shape, objects: objects.max(1), seed, resource, type_meta, templates, pool }
    }

    /// Returns the shape of the objects.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of objects.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Returns the type of the objects.
    pub fn resource(&self) -> &ResourceType {
        &self.resource
    }

    /// Returns the number of the object that a change affects; changes are numbered from 1.
    pub fn drawn(&self, change: u64) -> u64 {
        let mut random = Random::new(self.seed.rotate_left(32) ^ change.wrapping_mul(0xd134_2543_de82_ef95));
        random.below(place(self.objects)) as u64
    }

    /// Returns the version that this change gives to its object. A list directly after the change has the same version.
    pub fn version(&self, change: u64) -> u64 {
        FIRST_VERSION + self.objects + change
    }

    /// Returns the number of the change that led to a version; 0 for versions before the first change.
    pub fn change_of(&self, version: u64) -> u64 {
        version.saturating_sub(FIRST_VERSION + self.objects)
    }

    /// Appends an object as a watch sends it, in its state after this change. Change 0 is the first state.
    pub fn write(&self, number: u64, change: u64, out: &mut Vec<u8>) {
        out.push(b'{');
        out.extend_from_slice(self.type_meta.as_bytes());
        self.render(number, change, out);
    }

    /// Returns the output of [`Generator::write`].
    #[cfg(any(test, feature = "testing"))]
    pub fn object(&self, number: u64, change: u64) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(number, change, &mut out);
        out
    }

    /// Appends an object as a list contains it. Objects of built-in types then have no `kind` and no `apiVersion`.
    pub fn write_item(&self, number: u64, change: u64, out: &mut Vec<u8>) {
        if self.shape == Shape::Custom {
            return self.write(number, change, out);
        }
        out.push(b'{');
        self.render(number, change, out);
    }

    /// Returns the average size in bytes of the first 100 objects.
    pub fn object_bytes(&self) -> usize {
        let looked_at = self.objects.min(100);
        let mut out = Vec::new();
        (0..looked_at).for_each(|number| self.write(number, 0, &mut out));
        out.len() / place(looked_at)
    }

    /// Appends an object without its opening brace and its type.
    fn render(&self, number: u64, change: u64, out: &mut Vec<u8>) {
        let version = if change == 0 { FIRST_VERSION + number } else { self.version(change) };
        let own = Random::new(self.seed ^ number.wrapping_mul(0x9e6d_62d0_6f6a_9a9b));
        let mut draw = Draw { seed: self.seed, number, change, version, own, pool: &self.pool };
        let template = &self.templates[place(number % APPS.len() as u64)];
        template.render(out, |field, out| field(&mut draw, out).expect("a vector takes all"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn generated_objects_match_their_shape() {
        for (shape, bytes) in [
            (Shape::Pods, 8_000..11_000),
            (Shape::Diverse, 8_000..11_000),
            (Shape::Custom, 1_700..2_500),
            (Shape::Configmaps, 190_000..220_000),
            (Shape::Events, 900..1_600),
        ] {
            let generator = Generator::new(shape, 200, 7);
            let resource = shape.resource();
            for (number, change) in [(0, 0), (17, 0), (17, 3), (199, 1_000_000)] {
                let text = generator.object(number, change);
                assert!(bytes.contains(&text.len()), "{shape}: {} bytes", text.len());
                let object: Value = serde_json::from_slice(&text).unwrap();
                assert_eq!(object["kind"], resource.kind);
                assert_eq!(object["apiVersion"], resource.api_version());
                assert_eq!(object["metadata"]["namespace"], format!("team-{:02}", number / 20));
                assert!(!object["metadata"]["managedFields"].as_array().unwrap().is_empty());
                let mut item = Vec::new();
                generator.write_item(number, change, &mut item);
                let item: Value = serde_json::from_slice(&item).unwrap();
                assert_eq!(item.get("kind").is_some(), shape == Shape::Custom, "a list has no types of its items");
                assert_eq!(item["metadata"], object["metadata"]);
            }
        }
    }

    #[test]
    fn equal_seeds_make_equal_bytes() {
        for shape in Shape::ALL {
            let [one, same, other] = [7, 7, 8].map(|seed| Generator::new(shape, 100, seed));
            for (number, change) in [(3, 0), (3, 9)] {
                assert_eq!(one.object(number, change), same.object(number, change), "{shape}");
                assert_ne!(one.object(number, change), other.object(number, change), "{shape}");
            }
            let drawn = |generator: &Generator| (1..50).map(|change| generator.drawn(change)).collect::<Vec<_>>();
            assert_eq!(drawn(&one), drawn(&same));
            assert_ne!(drawn(&one), drawn(&other));
        }
    }

    #[test]
    fn each_object_has_one_uid_and_growing_versions() {
        let generator = Generator::new(Shape::Pods, 2_000, 1);
        let (mut uids, mut keys, mut versions) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let initial = (0..2_000).map(|number| (number, 0));
        for (number, change) in initial.chain((1..=3_000).map(|change| (generator.drawn(change), change))) {
            let object: Value = serde_json::from_slice(&generator.object(number, change)).unwrap();
            let metadata = &object["metadata"];
            versions.push(metadata["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
            uids.insert(metadata["uid"].as_str().unwrap().to_owned());
            keys.insert(format!("{}/{}", metadata["namespace"], metadata["name"]));
        }
        assert_eq!((uids.len(), keys.len()), (2_000, 2_000));
        assert!(versions.is_sorted_by(|a, b| a < b));
        assert_eq!(generator.version(3_000), versions[versions.len() - 1]);
        assert_eq!(generator.change_of(generator.version(3_000)), 3_000);
        assert_eq!(generator.change_of(3), 0);
    }

    #[test]
    fn stepwise_states_equal_states_computed_at_once() {
        let generator = Generator::new(Shape::Events, 50, 5);
        let (mut steps, mut once) = (States::default(), States::default());
        assert_eq!(once.last(49), 0);
        once.advance(&generator, 300);
        for change in [10, 10, 299, 300] {
            steps.advance(&generator, change);
        }
        let changed = |states: &States| (0..50).map(|number| states.last(number)).collect::<Vec<_>>();
        assert_eq!(changed(&steps), changed(&once));
        assert_eq!(steps.at(), 300);
        assert_eq!(changed(&once).into_iter().max(), Some(300), "the last change is somebody's");
    }

    #[test]
    fn changes_alter_objects_and_diverse_pods_compress_less() {
        for shape in Shape::ALL {
            let generator = Generator::new(shape, 10, 1);
            assert_ne!(generator.object(4, 2), generator.object(4, 3), "{shape}");
        }
        let packed = |shape| {
            let generator = Generator::new(shape, 20, 1);
            let pods: Vec<u8> = (0..20).flat_map(|number| generator.object(number, 0)).collect();
            zstd::bulk::compress(&pods, 1).unwrap().len()
        };
        assert!(packed(Shape::Diverse) > 2 * packed(Shape::Pods));
    }
}
