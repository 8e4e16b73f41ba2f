package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"deltabus.dev/cluster/internal/tool"
)

// dumpedList is the current list of one type.
type dumpedList struct {
	ResourceVersion string                  `json:"resourceVersion"`
	Items           map[string]dumpedObject `json:"items"`
}

type dumpedObject struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// runDump prints, for each named resource ("pods", "deployments.apps") or for all, the version of the list and
// key -> {uid, resourceVersion}. A key is namespace/name, or name for cluster-scoped types.
func runDump(args []string) error {
	flags := flag.NewFlagSet("dump", flag.ExitOnError)
	config := clientFlags(flags)
	all := flags.Bool("all", false, "every type that can be listed and watched, each in its group's preferred version, but for those named")
	flags.Parse(args)
	if flags.NArg() == 0 && !*all {
		return errors.New("no resource named")
	}
	restConfig, err := config()
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	resourcesOf := namedResources
	if *all {
		resourcesOf = watchableResources
	}
	resources, err := resourcesOf(restConfig, flags.Args())
	if err != nil {
		return err
	}
	dump := map[string]dumpedList{}
	for name, resource := range resources {
		// Without a resourceVersion the list includes every acknowledged write.
		list, err := client.Resource(resource).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("failed to list %s: %w", name, err)
		}
		dumped := dumpedList{ResourceVersion: list.ResourceVersion, Items: map[string]dumpedObject{}}
		for _, item := range list.Items {
			key := item.Name
			if item.Namespace != "" {
				key = item.Namespace + "/" + item.Name
			}
			dumped.Items[key] = dumpedObject{UID: string(item.UID), ResourceVersion: item.ResourceVersion}
		}
		dump[name] = dumped
	}
	return tool.PrintJSON(dump)
}

func namedResources(config *rest.Config, names []string) (map[string]schema.GroupVersionResource, error) {
	mapper, err := newMapper(config)
	if err != nil {
		return nil, err
	}
	resources := map[string]schema.GroupVersionResource{}
	for _, name := range names {
		resource, err := mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
		if err != nil {
			return nil, err
		}
		resources[name] = resource
	}
	return resources, nil
}

// watchableResources returns all types with list and watch, except the named ones, by `plural.group`.
func watchableResources(config *rest.Config, except []string) (map[string]schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := discovery.ServerPreferredResources(client)
	if err != nil {
		return nil, err
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists)
	served, err := discovery.GroupVersionResources(lists)
	if err != nil {
		return nil, err
	}
	resources := map[string]schema.GroupVersionResource{}
	for resource := range served {
		name := resource.GroupResource().String()
		if !slices.Contains(except, name) {
			resources[name] = resource
		}
	}
	return resources, nil
}
