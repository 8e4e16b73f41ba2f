package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// observation is the server's report on one object.
type observation struct {
	Type            string `json:"type"` // LISTED, ADDED, MODIFIED, DELETED; READY once, when all watches are open
	Resource        string `json:"resource,omitempty"`
	Key             string `json:"key,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// runObserve prints the existing objects of each named resource and then every change, one per line, until its stdin
// closes. A gap is an error, so its output has all changes.
func runObserve(args []string) error {
	flags := flag.NewFlagSet("observe", flag.ExitOnError)
	config := clientFlags(flags)
	flags.Parse(args)
	if flags.NArg() == 0 {
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
	resources, err := namedResources(restConfig, flags.Args())
	if err != nil {
		return err
	}
	out := &observer{out: bufio.NewWriter(os.Stdout)}
	failed := make(chan error, len(resources))
	for name, resource := range resources {
		version, err := out.list(client, name, resource)
		if err != nil {
			return err
		}
		go func() { failed <- out.watch(client, name, resource, version) }()
	}
	if err := out.print(observation{Type: "READY"}); err != nil {
		return err
	}
	closed := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(closed)
	}()
	select {
	case err := <-failed:
		return err
	case <-closed:
		return nil
	}
}

type observer struct {
	mutex sync.Mutex
	out   *bufio.Writer
}

func (o *observer) print(seen observation) error {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if err := json.NewEncoder(o.out).Encode(seen); err != nil {
		return err
	}
	return o.out.Flush()
}

func (o *observer) see(kind, resource string, object metav1.Object) error {
	key := object.GetNamespace() + "/" + object.GetName()
	return o.print(observation{
		Type: kind, Resource: resource, Key: key, UID: string(object.GetUID()), ResourceVersion: object.GetResourceVersion(),
	})
}

func (o *observer) list(client metadata.Interface, name string, resource schema.GroupVersionResource) (string, error) {
	list, err := client.Resource(resource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to list %s: %w", name, err)
	}
	for i := range list.Items {
		if err := o.see("LISTED", name, &list.Items[i]); err != nil {
			return "", err
		}
	}
	return list.ResourceVersion, nil
}

// watch prints all changes after a version. A watch that ends is resumed from the last received version.
func (o *observer) watch(client metadata.Interface, name string, resource schema.GroupVersionResource, version string) error {
	for {
		var stream watch.Interface
		err := retry(context.Background(), func() {}, func() (err error) {
			options := metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}
			stream, err = client.Resource(resource).Watch(context.Background(), options)
			return err
		})
		if err != nil {
			return fmt.Errorf("failed to watch %s from %s: %w", name, version, err)
		}
		for event := range stream.ResultChan() {
			if event.Type == watch.Error {
				return fmt.Errorf("the watch of %s from %s broke: %v", name, version, event.Object)
			}
			object, ok := event.Object.(metav1.Object)
			if !ok {
				return fmt.Errorf("the watch of %s sent %T", name, event.Object)
			}
			version = object.GetResourceVersion()
			if event.Type == watch.Bookmark {
				continue
			}
			if err := o.see(string(event.Type), name, object); err != nil {
				return err
			}
		}
	}
}
