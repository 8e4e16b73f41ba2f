//! Many types of custom resources, for benches.

use super::{
    super::{ApiError, random::Random, shared::SharedStore},
    APPS, DEFINITIONS, Workload,
    fill::Fill,
    objects,
};

/// Creation time of the objects: benches do not read the clock.
const CREATED: &str = "2026-01-01T00:00:00Z";

impl Workload {
    /// Defines `types` custom resource types, named by `bench_type`, with `objects` objects each.
    pub fn load_types(&mut self, store: &SharedStore, types: usize, objects: usize) -> Result<(), ApiError> {
        for number in 0..types {
            let name = bench_type(number);
            let (plural, group) = name.split_once('.').unwrap_or((&name, ""));
            store.put(DEFINITIONS, objects::definition(group, plural))?;
            let fills = (0..objects).map(|object| custom_resource(object, plural));
            store.ingest(&name, fills.map(|fill| fill.custom_resource()))?;
        }
        Ok(())
    }
}

/// Returns the name of the type with this number, as [`Workload::load_types`] defines it: `kind007s.group7.bench.deltabus.dev`. The
/// types are spread over ten groups.
pub fn bench_type(number: usize) -> String {
    format!("kind{number:03}s.group{}.bench.deltabus.dev", number % 10)
}

/// Creates custom resource `number` of a kind: about 2 KB with sorted keys, so that `managedFields` precedes `name`.
pub(super) fn custom_resource(number: usize, what: &str) -> Fill {
    let app = APPS[number % APPS.len()];
    Fill {
        name: format!("{app}-{what}-{number:06}"),
        namespace: format!("team-{:02}", number / 20 % 100),
        uid: Random::new(0x5eed ^ ((number as u64) << 8)).uuid(),
        app: app.to_owned(),
        image: "1.4.2".to_owned(),
        number,
        created: CREATED.to_owned(),
        time: CREATED.to_owned(),
        ..Fill::default()
    }
}
