package main

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// dynamicInformer is client-go's informer for any type: objects are maps.
func dynamicInformer(config *rest.Config, strip bool) (informer, func(context.Context), error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	return shared(factory.ForResource(corev1.SchemeGroupVersion.WithResource("pods")).Informer(), strip)
}

// typedInformer is client-go's generated informer, with the given content type.
func typedInformer(contentType string) peer {
	return func(config *rest.Config, strip bool) (informer, func(context.Context), error) {
		config.ContentType = contentType
		config.AcceptContentTypes = contentType
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, nil, err
		}
		return shared(informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer(), strip)
	}
}

// shared returns the function that runs one of client-go's informers.
func shared(of cache.SharedIndexInformer, strip bool) (informer, func(context.Context), error) {
	if strip {
		if err := of.SetTransform(withoutManagedFields); err != nil {
			return nil, nil, err
		}
	}
	return of, of.RunWithContext, nil
}

func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// controllerRuntimeCache is the cache of a manager; its content type for built-in types is protobuf.
func controllerRuntimeCache(config *rest.Config, strip bool) (informer, func(context.Context), error) {
	ctrllog.SetLogger(logr.Discard())
	var options ctrlcache.Options
	if strip {
		options.DefaultTransform = ctrlcache.TransformStripManagedFields()
	}
	made, err := ctrlcache.New(config, options)
	if err != nil {
		return nil, nil, err
	}
	pods, err := made.GetInformer(context.Background(), &corev1.Pod{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, nil, err
	}
	run := func(ctx context.Context) {
		if err := made.Start(ctx); err != nil {
			panic(fmt.Errorf("the cache ended: %w", err))
		}
	}
	return pods, run, nil
}
