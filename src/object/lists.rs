//! Paths that forget that something is a list.

use super::{FieldPath, field_path::Step};

/// Members that are lists wherever Kubernetes' own types have them.
const LISTS: [&str; 14] = [
    "conditions",
    "containerStatuses",
    "containers",
    "env",
    "envFrom",
    "ephemeralContainers",
    "initContainerStatuses",
    "initContainers",
    "ownerReferences",
    "ports",
    "taints",
    "tolerations",
    "volumeMounts",
    "volumes",
];

impl FieldPath {
    /// Returns what was probably meant where a step goes from a list of Kubernetes' own types straight to a member, which
    /// leads nowhere: the same path with `[*]` between. `None` where nothing is missing.
    pub(crate) fn with_lists(&self) -> Option<Self> {
        let mut steps = Vec::with_capacity(self.steps.len() + 1);
        for step in &self.steps {
            let behind_list = matches!(steps.last(), Some(Step::Member(name)) if LISTS.contains(&&**name));
            if behind_list && matches!(step, Step::Member(_)) {
                steps.push(Step::Each);
            }
            steps.push(step.clone());
        }
        (steps.len() > self.steps.len()).then_some(Self { steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_a_list_is_meant_of_each_of_its_elements() {
        let meant = |path: &str| FieldPath::parse(path).expect("a path").with_lists().map(|path| path.to_string());
        assert_eq!(meant("spec.containers.image").as_deref(), Some("spec.containers[*].image"));
        assert_eq!(meant("spec.containers.env.value").as_deref(), Some("spec.containers[*].env[*].value"));
        for path in ["spec.containers[*].image", "spec.containers", "spec['containers'][*]", "owner", "containers"] {
            assert_eq!(meant(path), None, "{path}");
        }
    }
}
