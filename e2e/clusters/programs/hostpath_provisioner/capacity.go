package main

import (
	"context"
	"fmt"

	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v11/controller"
)

// reserve verifies that the class has room for the volume, and counts it from now on.
func (p *provisioner) reserve(
	options controller.ProvisionOptions, parameters parameters, size resource.Quantity,
) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.reserved, options.PVName)
	left := parameters.capacity.Value() - p.used(options.StorageClass.Name)
	if size.Value() > left {
		return fmt.Errorf("not enough capacity: %s requested, %d bytes available", &size, left)
	}
	p.reserved[options.PVName] = reservation{options.StorageClass.Name, size.Value()}
	return nil
}

// release ends a reservation.
func (p *provisioner) release(volume string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.reserved, volume)
}

// used returns the size of all volumes of a class in bytes; the caller holds the mutex.
func (p *provisioner) used(class string) int64 {
	var sum int64
	volumes, _ := p.volumes.List(labels.Everything())
	for _, volume := range volumes {
		if volume.Spec.StorageClassName == class && p.provisioned(volume) {
			sum += volume.Spec.Capacity.Storage().Value()
			delete(p.reserved, volume.Name)
		}
	}
	for _, each := range p.reserved {
		if each.class == class {
			sum += each.size
		}
	}
	return sum
}

// publishAll keeps a CSIStorageCapacity for each class, which the garbage collector removes with it.
func (p *provisioner) publishAll(ctx context.Context) {
	classes, _ := p.classes.List(labels.Everything())
	for _, class := range classes {
		parameters, err := parse(class)
		if class.Provisioner != p.name || err != nil {
			continue
		}
		p.mutex.Lock()
		left := max(parameters.capacity.Value()-p.used(class.Name), 0)
		p.mutex.Unlock()
		if err := p.publish(ctx, class, *resource.NewQuantity(left, resource.BinarySI)); err != nil {
			klog.ErrorS(err, "cannot publish the capacity", "class", class.Name)
		}
	}
}

func (p *provisioner) publish(
	ctx context.Context, class *storage.StorageClass, capacity resource.Quantity,
) error {
	capacities := p.client.StorageV1().CSIStorageCapacities(capacityNamespace)
	// The UID, because a class may be deleted and created again.
	name := fmt.Sprintf("%s-%s", class.Name, class.UID)
	found, err := p.capacities.CSIStorageCapacities(capacityNamespace).Get(name)
	if apierrors.IsNotFound(err) {
		owner := metav1.OwnerReference{
			APIVersion: "storage.k8s.io/v1", Kind: "StorageClass", Name: class.Name, UID: class.UID,
		}
		_, err = capacities.Create(ctx, &storage.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, OwnerReferences: []metav1.OwnerReference{owner},
			},
			StorageClassName:  class.Name,
			NodeTopology:      &metav1.LabelSelector{},
			Capacity:          &capacity,
			MaximumVolumeSize: &capacity,
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil || found.Capacity.Cmp(capacity) == 0 {
		return err
	}
	found = found.DeepCopy()
	found.Capacity, found.MaximumVolumeSize = &capacity, &capacity
	_, err = capacities.Update(ctx, found, metav1.UpdateOptions{})
	return err
}
