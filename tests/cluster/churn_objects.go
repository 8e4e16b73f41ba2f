package main

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// churnKind is a type of object that churn writes.
type churnKind struct {
	name       string // as on the command line
	apiVersion string
	kind       string
	resource   schema.GroupVersionResource
	weight     int // share of the operations
	fill       func(r *rand.Rand, object map[string]any)
	specPatch  func(r *rand.Rand) map[string]any // nil: only metadata changes
	status     func(r *rand.Rand) map[string]any // nil: no status subresource
}

var churnKinds = []churnKind{
	{
		name: "pods", apiVersion: "v1", kind: "Pod", weight: 35,
		resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		fill:     func(r *rand.Rand, object map[string]any) { object["spec"] = podSpec(r) },
		status: func(r *rand.Rand) map[string]any {
			return map[string]any{"phase": pick(r, "Pending", "Running", "Failed"), "message": fmt.Sprintf("seen %d", r.IntN(1000))}
		},
	},
	{
		name: "configmaps", apiVersion: "v1", kind: "ConfigMap", weight: 25,
		resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		fill: func(r *rand.Rand, object map[string]any) {
			object["data"] = map[string]any{"text": strings.Repeat("x", r.IntN(2048))}
		},
		specPatch: func(r *rand.Rand) map[string]any {
			return map[string]any{"data": map[string]any{pick(r, "a", "b", "c"): fmt.Sprint(r.IntN(1000))}}
		},
	},
	{
		name: "deployments.apps", apiVersion: "apps/v1", kind: "Deployment", weight: 20,
		resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		fill: func(r *rand.Rand, object map[string]any) {
			object["spec"] = map[string]any{
				"replicas": int64(r.IntN(5)),
				"selector": map[string]any{"matchLabels": map[string]any{"app": "churn"}},
				"template": map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"app": "churn"}},
					"spec":     podSpec(r),
				},
			}
		},
		specPatch: func(r *rand.Rand) map[string]any {
			return map[string]any{"spec": map[string]any{"replicas": r.IntN(5)}}
		},
		status: func(r *rand.Rand) map[string]any {
			replicas := r.IntN(5)
			return map[string]any{"replicas": replicas, "readyReplicas": r.IntN(replicas + 1), "observedGeneration": 1}
		},
	},
	{
		name: "widgets.test.deltabus.dev", apiVersion: "test.deltabus.dev/v1", kind: "Widget", weight: 20,
		resource: schema.GroupVersionResource{Group: "test.deltabus.dev", Version: "v1", Resource: "widgets"},
		fill: func(r *rand.Rand, object map[string]any) {
			object["spec"] = map[string]any{"size": int64(r.IntN(100)), "color": pick(r, "red", "green", "blue")}
		},
		specPatch: func(r *rand.Rand) map[string]any {
			return map[string]any{"spec": map[string]any{"size": r.IntN(100)}}
		},
		status: func(r *rand.Rand) map[string]any {
			return map[string]any{"phase": pick(r, "New", "Ready", "Broken"), "seen": r.IntN(1000)}
		},
	},
}

// podSpec is a pod that stays Pending: no scheduler has this name, not even in a cluster with a real one.
func podSpec(r *rand.Rand) map[string]any {
	return map[string]any{
		"schedulerName":                "nobody",
		"automountServiceAccountToken": false,
		"containers":                   []any{map[string]any{"name": "main", "image": fmt.Sprintf("registry.invalid/app:%d", r.IntN(10))}},
	}
}

// newObject returns an object to create. One in ten has a finalizer, so that its deletion takes two steps.
func (k churnKind) newObject(r *rand.Rand, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion(k.apiVersion)
	object.SetKind(k.kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetLabels(map[string]string{
		"app":   "churn",
		"tier":  pick(r, "web", "cache", "db"),
		"shard": fmt.Sprint(r.IntN(churnShards)),
	})
	if r.IntN(10) == 0 {
		object.SetFinalizers([]string{"test.deltabus.dev/hold"})
	}
	k.fill(r, object.Object)
	return object
}

func pick(r *rand.Rand, choices ...string) string { return choices[r.IntN(len(choices))] }
