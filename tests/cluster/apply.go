package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"deltabus.dev/cluster/internal/tool"
)

// runApply applies the YAML or JSON documents on stdin (server-side, by force) and prints one line per resulting object.
func runApply(args []string) error {
	flags := flag.NewFlagSet("apply", flag.ExitOnError)
	config := clientFlags(flags)
	flags.Parse(args)
	restConfig, err := config()
	if err != nil {
		return err
	}
	applier, err := newApplier(restConfig)
	if err != nil {
		return err
	}
	return applier.applyAll(context.Background(), os.Stdin, func(object *unstructured.Unstructured) error { return tool.PrintJSON(object) })
}

type applier struct {
	config *rest.Config
	client dynamic.Interface
	mapper meta.RESTMapper
}

func newApplier(config *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	mapper, err := newMapper(config)
	if err != nil {
		return nil, err
	}
	return &applier{config, client, mapper}, nil
}

func (a *applier) applyAll(ctx context.Context, text io.Reader, applied func(*unstructured.Unstructured) error) error {
	decoder := yaml.NewYAMLOrJSONDecoder(text, 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		objects := []unstructured.Unstructured{*object}
		if object.IsList() {
			list, err := object.ToList()
			if err != nil {
				return err
			}
			objects = list.Items
		}
		for i := range objects {
			result, err := a.apply(ctx, &objects[i])
			if err != nil {
				return fmt.Errorf("failed to apply %s %s: %w", objects[i].GetKind(), objects[i].GetName(), err)
			}
			if err := applied(result); err != nil {
				return err
			}
		}
	}
}

func (a *applier) apply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	mapping, err := a.mapping(object)
	if err != nil {
		return nil, err
	}
	client := dynamic.ResourceInterface(a.client.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		namespace := object.GetNamespace()
		if namespace == "" {
			namespace = metav1.NamespaceDefault
		}
		client = a.client.Resource(mapping.Resource).Namespace(namespace)
	}
	var result *unstructured.Unstructured
	err = retry(ctx, func() {}, func() error {
		result, err = client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "cluster", Force: true})
		return err
	})
	if err != nil || object.GetKind() != "CustomResourceDefinition" {
		return result, err
	}
	return result, a.waitEstablished(ctx, client, object.GetName())
}

// mapping looks up an object's type. If that fails it retries with fresh discovery, because the definition may be new.
func (a *applier) mapping(object *unstructured.Unstructured) (*meta.RESTMapping, error) {
	kind := object.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if !meta.IsNoMatchError(err) {
		return mapping, err
	}
	if a.mapper, err = newMapper(a.config); err != nil {
		return nil, err
	}
	return a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
}

// waitEstablished waits until a custom resource definition is served, also in discovery.
func (a *applier) waitEstablished(ctx context.Context, client dynamic.ResourceInterface, name string) error {
	deadline := time.Now().Add(retryTimeout)
	for time.Now().Before(deadline) {
		definition, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if a.isServed(ctx, definition) {
			return nil
		}
		time.Sleep(retryPause)
	}
	return fmt.Errorf("%s was not established within %s", name, retryTimeout)
}

func (a *applier) isServed(ctx context.Context, definition *unstructured.Unstructured) bool {
	established := false
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, condition := range conditions {
		fields, _ := condition.(map[string]any)
		established = established || fields["type"] == "Established" && fields["status"] == "True"
	}
	if !established {
		return false
	}
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	mapper, err := newMapper(a.config)
	if err != nil {
		return false
	}
	a.mapper = mapper
	resource, err := mapper.ResourceFor(schema.GroupResource{Group: group, Resource: plural}.WithVersion(""))
	if err != nil {
		return false
	}
	_, err = a.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	return err == nil
}
