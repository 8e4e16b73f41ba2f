package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// dumpedList is one type as the server lists it now.
type dumpedList struct {
	ResourceVersion string                  `json:"resourceVersion"`
	Items           map[string]dumpedObject `json:"items"`
}

type dumpedObject struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// runDump prints, for each resource named ("pods", "deployments.apps"), the version of the list and
// key -> {uid, resourceVersion}. A key is namespace/name, or the name where the type has no namespaces.
func runDump(args []string) error {
	flags := flag.NewFlagSet("dump", flag.ExitOnError)
	config := clientFlags(flags)
	flags.Parse(args)
	if flags.NArg() == 0 {
		return errors.New("no resource named")
	}
	rest, err := config()
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(rest)
	if err != nil {
		return err
	}
	mapper, err := newMapper(rest)
	if err != nil {
		return err
	}
	dump := map[string]dumpedList{}
	for _, name := range flags.Args() {
		resource, err := mapper.ResourceFor(schema.ParseGroupResource(name).WithVersion(""))
		if err != nil {
			return err
		}
		// Without a resourceVersion: the list shows every write that was answered before.
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
	return printJSON(dump)
}
