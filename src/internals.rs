//! Parts of the engine that the tests and benches of this repository use, under the paths that they have in the crate. They are not
//! part of the API.

pub mod backoff {
    pub use crate::backoff::BackoffConfig;
}
pub mod bench {
    pub use crate::bench::{Generator, Probe, ReplayServer, Shape, States};
    pub mod chart {
        pub use crate::bench::chart::{Bars, Colour, Panel, bars};
    }
    pub mod figures {
        pub use crate::bench::figures::FIGURES;
    }
    pub mod measure {
        pub use crate::bench::measure::{cpu, machine, resident, written};
    }
    pub mod orders {
        pub use crate::bench::orders::EngineOptions;
    }
    pub mod report {
        pub use crate::bench::report::number;
    }
}
pub mod change {
    pub use crate::change::{Cause, Change, Reached};
}
pub mod cloud_event {
    pub use crate::cloud_event::{ContentMode, DATA_CONTENT_TYPE, DataFormat, Encoder, Formatter, id};
    pub mod template {
        pub use crate::cloud_event::template::Template;
    }
}
pub mod config {
    pub use crate::config::{
        Cache, ClientTls, Compression, Config, ConfigErrors, DataFormat, EventType, FileFsync, FileOptions, Finding,
        HandlerOptions, Http, Initial, Loaded, LogLevel, Mode, OnMissing, OnRemoved, Permissions, QueueOrder,
        Rediscover, SinkConfig, ValueOrigin, WhenFull,
    };
    pub mod schema {
        pub use crate::config::schema::schema;
    }
}
pub mod delivery {
    pub mod attempts {
        pub use crate::delivery::attempts::Retry;
    }
    pub mod status {
        pub use crate::delivery::status::{Control, HandlerState, HandlerView};
    }
}
pub mod delta_fifo {
    pub use crate::delta_fifo::{Delta, DeltaFifo, DeltaKind, Deltas, QueueOrder};
    pub mod messages {
        pub use crate::delta_fifo::messages::Drain;
    }
}
pub mod engine {
    pub use crate::engine::{Engine, EngineBuilder, EngineError, RunningEngine, Spot, StopReport};
}
pub mod handler {
    pub use crate::handler::{AsyncHandler, Form, HandlerError};
    pub mod kafka {
        #[cfg(feature = "kafka")]
        pub use crate::handler::kafka::KafkaHandler;
        pub use crate::handler::kafka::{Acks, KafkaCompression, KafkaOptions, KafkaSasl, SaslMechanism};
    }
    pub mod nats {
        pub use crate::handler::nats::{ExpectLast, JetStreamOptions, NatsAuth, NatsHandler, NatsOptions};
    }
    pub mod webhook {
        pub use crate::handler::webhook::{Auth, Webhook, WebhookMethod, WebhookOptions, WebhookTls};
    }
}
pub mod indexer {
    pub use crate::indexer::{Indexer, IndexerOptions};
    pub mod actor {
        pub use crate::indexer::actor::Terminate;
    }
    pub mod index_func {
        pub use crate::indexer::index_func::IndexFunc;
    }
    pub mod siblings {
        pub use crate::indexer::siblings::Siblings;
    }
    pub mod store {
        pub use crate::indexer::store::{EvmapStore, Meta};
    }
}
pub mod informer {
    pub use crate::informer::{Actors, Informer, InformerOptions, Seed, Shared, SourceFactory};
}
pub mod journal {
    pub use crate::journal::{
        Bounds, ChangeSet, Interest, Journal, ReaderFilter, ReaderId, ReaderOptions, Record, RecordFilter, Sequence,
        TypeNumber, UnitId, UnitInterest, UnitTerms,
    };
    pub mod store {
        pub use crate::journal::store::{Append, Store};
    }
}
pub mod list_watch {
    pub use crate::list_watch::{Failure, ListWatch, WatchEvent};
    pub mod decode {
        pub use crate::list_watch::decode::{ListDecoder, WatchDecoder};
    }
    pub mod kube {
        pub use crate::list_watch::kube::{ClusterAccess, KubeListWatch, KubeOptions, Limits, Scope};
        pub mod raw {
            pub use crate::list_watch::kube::raw::{Answer, RawClient};
        }
    }
    pub mod scoped {
        pub use crate::list_watch::scoped::Gate;
    }
    pub mod transform {
        pub use crate::list_watch::transform::Transform;
    }
}
pub mod lister {
    pub use crate::lister::{FieldSelector, LabelSelector, Lister, ReadError, Selector};
}
pub mod notification {
    pub use crate::notification::{Event, Notification, Stopped, UnitInfo};
}
pub mod object {
    pub use crate::object::{FieldPath, Keep, KeyRef, Object, ObjectKey, ResourceType};
    pub mod codec {
        pub use crate::object::codec::{CodecError, Compression, Dictionary, of_packed, with_packed};
    }
    pub mod packer {
        pub use crate::object::packer::{Compression, Packer};
    }
    pub mod scan {
        pub use crate::object::scan::{ScanPlan, TypeMeta, scan_object};
    }
}
pub mod reflector {
    pub use crate::reflector::{ReflectorConfig, ReflectorEvent, StreamingLists};
    pub mod messages {
        pub use crate::reflector::messages::Stop;
    }
}
pub mod rules {
    pub use crate::rules::{Rules, RulesOptions};
}
pub mod secret {
    pub use crate::secret::{PlainOrSecret, SecretRef, SecretString};
}
pub mod simulator {
    pub use crate::simulator::{
        Area, HistoryLimits, Random, RawObject, RequestKind, Running, SeenRequest, ServerFault, Simulator,
        SimulatorOptions, Sizes, StreamFault, StreamingSupport, Times, Workload, bench_type, strategic_merge,
    };
}
pub mod status {
    pub use crate::status::{UnitState, UnitView};
}
pub mod supervisor {
    pub use crate::supervisor::Supervision;
    pub mod arbiters {
        pub use crate::supervisor::arbiters::Arbiters;
    }
    pub mod fault {
        pub use crate::supervisor::fault::{Harm, Hold, Moment};
    }
}
pub mod work_queue {
    pub use crate::work_queue::{WorkQueue, default_controller_limiter};
}
